"""The Triton programs of instance norms; imported at the first call only, since they need Triton.

A program has a block of channels of one image, and some of its pixels. Where the channels of a pixel lie side by side
(LAST) it reads several of them at once, otherwise one channel's pixels in a row.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _block(num_pixels, channels, LAST: tl.constexpr, BY_EIGHT: tl.constexpr,
           BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    """Where the program's channels begin, how far pixels are apart, the places of a block, its pixels and channels, and
    how many of these there are: by the eight they are read by the eight, Triton looks for sixteen only.
    """
    if BY_EIGHT:
        channels = tl.multiple_of(channels, 8)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    image = tl.program_id(2).to(tl.int64) * num_pixels * channels
    p = tl.arange(0, BLOCK_P)
    if LAST:
        begin, step = image, channels
        place = p[:, None] * channels + c[None, :]
    else:
        begin, step = image + tl.program_id(1).to(tl.int64) * num_pixels, 1
        place = p[:, None] + tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.int32)
    return begin, step, place, p, c, channels


@triton.jit
def _slope(v_out, cut, place, inside, RELU: tl.constexpr):
    """The gradient before the cut at 0."""
    v = tl.load(v_out + place, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        v = tl.where(tl.load(cut + place, mask=inside, other=0.0) > 0, v, 0.0)
    return v


@triton.jit
def instance_norm_sums_kernel(
    x, parts, num_pixels, channels, part,
    LAST: tl.constexpr, BY_EIGHT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Mean, and sum of squared distances from it, of one part of the pixels: [n, parts, 2, C].

    Distances are taken from the mean of the first block, so that a mean far from 0 costs no digits.
    """
    begin, step, place, p, c, channels = _block(num_pixels, channels, LAST, BY_EIGHT, BLOCK_P, BLOCK_C)
    real = c < channels
    first = tl.program_id(0) * part
    end = tl.minimum(first + part, num_pixels)
    inside = (p < end - first)[:, None] & real[None, :]
    some = tl.load(x + begin + first.to(tl.int64) * step + place, mask=inside, other=0.0).to(tl.float32)
    near = tl.sum(some, 0) / tl.minimum(end - first, BLOCK_P).to(tl.float32)
    total = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    squares = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    for number in range(tl.cdiv(end - first, BLOCK_P)):
        start = first + number * BLOCK_P
        inside = (p < end - start)[:, None] & real[None, :]
        some = tl.load(x + begin + start.to(tl.int64) * step + place, mask=inside, other=0.0).to(tl.float32)
        away = tl.where(inside, some - near[None, :], 0.0)
        total += away
        squares += away * away
    count = (end - first).to(tl.float32)
    off = tl.sum(total, 0) / count
    rest = tl.maximum(tl.sum(squares, 0) - off * off * count, 0.0)
    row = (tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * 2 * channels
    tl.store(parts + row + c, near + off, mask=real)
    tl.store(parts + row + channels + c, rest, mask=real)


@triton.jit
def instance_norm_fwd_kernel(
    x, weight, bias, residual, parts, out, kept, num_pixels, channels, part, num_parts, written, eps,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr, KEEP: tl.constexpr, LAST: tl.constexpr, BY_EIGHT: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    begin, step, place, p, c, channels = _block(num_pixels, channels, LAST, BY_EIGHT, BLOCK_P, BLOCK_C)
    real = c < channels
    s = tl.arange(0, BLOCK_S)
    known = (s < num_parts)[:, None] & real[None, :]
    row = tl.program_id(2).to(tl.int64) * num_parts * 2 * channels + s[:, None] * (2 * channels) + c[None, :]
    means = tl.load(parts + row, mask=known, other=0.0)
    count = tl.where(known, tl.minimum(part, num_pixels - s * part)[:, None], 0).to(tl.float32)
    mean = tl.sum(means * count, 0) / num_pixels
    away = means - mean[None, :]
    squares = tl.load(parts + row + channels, mask=known, other=0.0) + away * away * count
    inverse = tl.rsqrt(tl.sum(squares, 0) / num_pixels + eps)
    if KEEP:
        there = kept + tl.program_id(2).to(tl.int64) * 2 * channels + c
        one = c < tl.where(tl.program_id(0) == 0, channels, 0)
        tl.store(there, mean, mask=one)
        tl.store(there + channels, inverse, mask=one)
    scale = inverse * tl.load(weight + c, mask=real, other=0.0).to(tl.float32)
    shift = tl.load(bias + c, mask=real, other=0.0).to(tl.float32)
    first = tl.program_id(0) * written
    end = tl.minimum(first + written, num_pixels)
    for number in range(tl.cdiv(end - first, BLOCK_P)):
        start = first + number * BLOCK_P
        inside = (p < end - start)[:, None] & real[None, :]
        here = begin + start.to(tl.int64) * step
        z = tl.load(x + here + place, mask=inside, other=0.0).to(tl.float32)
        z = (z - mean[None, :]) * scale[None, :] + shift[None, :]
        if RESIDUAL:
            z += tl.load(residual + here + place, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            z = tl.where(z < 0, 0.0, z)  # NaN stays one
        tl.store(out + here + place, z.to(out.dtype.element_ty), mask=inside)


@triton.jit
def instance_norm_bwd_sums_kernel(
    v_out, x, cut, kept, parts, num_pixels, channels, part,
    RELU: tl.constexpr, LAST: tl.constexpr, BY_EIGHT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Sums of the gradient, and of it times the normalised numbers, of one part of the pixels: [n, parts, 2, C]."""
    begin, step, place, p, c, channels = _block(num_pixels, channels, LAST, BY_EIGHT, BLOCK_P, BLOCK_C)
    real = c < channels
    there = kept + tl.program_id(2).to(tl.int64) * 2 * channels + c
    mean = tl.load(there, mask=real, other=0.0)
    inverse = tl.load(there + channels, mask=real, other=0.0)
    total = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    along = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    first = tl.program_id(0) * part
    end = tl.minimum(first + part, num_pixels)
    for number in range(tl.cdiv(end - first, BLOCK_P)):
        start = first + number * BLOCK_P
        inside = (p < end - start)[:, None] & real[None, :]
        here = begin + start.to(tl.int64) * step + place
        v = _slope(v_out, cut, here, inside, RELU)
        unit = (tl.load(x + here, mask=inside, other=0.0).to(tl.float32) - mean[None, :]) * inverse[None, :]
        total += v
        along += v * unit
    row = (tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * 2 * channels
    tl.store(parts + row + c, tl.sum(total, 0), mask=real)
    tl.store(parts + row + channels + c, tl.sum(along, 0), mask=real)


@triton.jit
def instance_norm_bwd_kernel(
    v_out, x, cut, kept, weight, parts, v_x, v_residual, num_pixels, channels, num_parts, written,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr, LAST: tl.constexpr, BY_EIGHT: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    begin, step, place, p, c, channels = _block(num_pixels, channels, LAST, BY_EIGHT, BLOCK_P, BLOCK_C)
    real = c < channels
    there = kept + tl.program_id(2).to(tl.int64) * 2 * channels + c
    mean = tl.load(there, mask=real, other=0.0)
    inverse = tl.load(there + channels, mask=real, other=0.0)
    s = tl.arange(0, BLOCK_S)
    known = (s < num_parts)[:, None] & real[None, :]
    row = tl.program_id(2).to(tl.int64) * num_parts * 2 * channels + s[:, None] * (2 * channels) + c[None, :]
    level = tl.sum(tl.load(parts + row, mask=known, other=0.0), 0) / num_pixels
    along = tl.sum(tl.load(parts + row + channels, mask=known, other=0.0), 0) / num_pixels
    scale = inverse * tl.load(weight + c, mask=real, other=0.0).to(tl.float32)
    first = tl.program_id(0) * written
    end = tl.minimum(first + written, num_pixels)
    for number in range(tl.cdiv(end - first, BLOCK_P)):
        start = first + number * BLOCK_P
        inside = (p < end - start)[:, None] & real[None, :]
        here = begin + start.to(tl.int64) * step + place
        v = _slope(v_out, cut, here, inside, RELU)
        if RESIDUAL:
            tl.store(v_residual + here, v.to(v_residual.dtype.element_ty), mask=inside)
        unit = (tl.load(x + here, mask=inside, other=0.0).to(tl.float32) - mean[None, :]) * inverse[None, :]
        v = (v - level[None, :] - unit * along[None, :]) * scale[None, :]
        tl.store(v_x + here, v.to(v_x.dtype.element_ty), mask=inside)
