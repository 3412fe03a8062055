"""The Triton program of pooled channels; imported at the first call only, since it needs Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def channel_pool_fwd_kernel(
    x, out, num_pixels, channels,
    LAST: tl.constexpr, BY_EIGHT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    if BY_EIGHT:
        channels = tl.multiple_of(channels, 8)
    image = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0).to(tl.int64) * BLOCK_P
    p = tl.arange(0, BLOCK_P)
    c = tl.arange(0, BLOCK_C)
    real = p < num_pixels - first
    total = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    most = tl.full((BLOCK_P, BLOCK_C), float("-inf"), dtype=tl.float32)
    for number in range(tl.cdiv(channels, BLOCK_C)):
        done = number * BLOCK_C
        inside = real[:, None] & (c < channels - done)[None, :]
        if LAST:
            there = x + (image * num_pixels + first) * channels + done + p[:, None] * channels + c[None, :]
        else:
            there = x + (image * channels + done) * num_pixels + first + p[:, None] + c[None, :]
        some = tl.load(there, mask=inside, other=0.0).to(tl.float32)
        total += some
        # What is no number is the largest, as in torch.
        most = tl.where(inside & ((some > most) | (some != some)), some, most)
    mean = tl.sum(total, 1) / channels
    best = tl.max(most, 1)
    best = tl.where(tl.sum((most != most).to(tl.int32), 1) > 0, float("nan"), best)
    if LAST:
        there = out + (image * num_pixels + first + p) * 2
        step = 1
    else:
        there = out + image * 2 * num_pixels + first + p
        step = num_pixels
    tl.store(there, mean.to(out.dtype.element_ty), mask=real)
    tl.store(there + step, best.to(out.dtype.element_ty), mask=real)
