"""The Triton program that enlarges and adds; imported at the first call only, since it needs Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _at(place, large, small):
    """Where a place of the large side lies on the small one: the place before it, the one behind, and how far between.

    The distance is computed as torch does, from the product in float32.
    """
    scale = tl.where(large > 1, (small - 1).to(tl.float32) / tl.maximum(large - 1, 1).to(tl.float32), 0.0)
    exact = place.to(tl.float32) * scale
    before = tl.minimum(exact.to(tl.int32), small - 1)
    return before, tl.minimum(before + 1, small - 1), exact - before.to(tl.float32)


@triton.jit
def _enlarged(part, high, wide, image, channels, y, x, height, width, c, inside,
              LAST: tl.constexpr):  # fmt: skip
    """The numbers of a part, enlarged, at the pixels x of row y and the channels c."""
    top, bottom, down = _at(y, height, high)
    left, right, along = _at(x, width, wide)
    begin = part + image * high * wide * channels
    if LAST:
        row, column, place = wide * channels, channels, c[None, :]
    else:
        row, column, place = wide, 1, (c * (high * wide))[None, :]
    a = tl.load(begin + top * row + left[:, None] * column + place, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(begin + top * row + right[:, None] * column + place, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(begin + bottom * row + left[:, None] * column + place, mask=inside, other=0.0).to(tl.float32)
    e = tl.load(begin + bottom * row + right[:, None] * column + place, mask=inside, other=0.0).to(tl.float32)
    over = a * (1 - along)[:, None] + b * along[:, None]
    under = d * (1 - along)[:, None] + e * along[:, None]
    return over * (1 - down) + under * down


# A side of one pixel would be compiled as the constant 1, which is no tensor to compute with.
@triton.jit(do_not_specialize=["high0", "wide0", "high1", "wide1", "high2", "wide2", "height", "width"])
def enlarge_fwd_kernel(
    base, part0, high0, wide0, part1, high1, wide1, part2, high2, wide2, out, height, width, channels, groups,
    PARTS: tl.constexpr, RELU: tl.constexpr, LAST: tl.constexpr, BY_EIGHT: tl.constexpr,
    BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    if BY_EIGHT:
        channels = tl.multiple_of(channels, 8)
    image = (tl.program_id(2) // groups).to(tl.int64)
    c = (tl.program_id(2) % groups) * BLOCK_C + tl.arange(0, BLOCK_C)
    x = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)
    y = tl.program_id(1)
    inside = (x < width)[:, None] & (c < channels)[None, :]
    if LAST:
        place = ((image * height + y) * width) * channels + x[:, None] * channels + c[None, :]
    else:
        place = image * channels * height * width + y * width + x[:, None] + (c.to(tl.int64) * height * width)[None, :]
    z = tl.load(base + place, mask=inside, other=0.0).to(tl.float32)
    z += _enlarged(part0, high0, wide0, image, channels, y, x, height, width, c, inside, LAST)
    if PARTS > 1:
        z += _enlarged(part1, high1, wide1, image, channels, y, x, height, width, c, inside, LAST)
    if PARTS > 2:
        z += _enlarged(part2, high2, wide2, image, channels, y, x, height, width, c, inside, LAST)
    if RELU:
        z = tl.where(z < 0, 0.0, z)  # NaN stays one
    tl.store(out + place, z.to(out.dtype.element_ty), mask=inside)
