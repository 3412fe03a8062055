"""The Triton programs that pool several views; imported at the first call only, since they need Triton.

A program takes some points of one object and some channels of one map, which lies in memory with its channels side by
side, and goes over the views. Mean and squares are updated view by view, so that little is lost where views agree.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _axis(pixel, scale, limit, side, BILINEAR: tl.constexpr):
    """The pixel before, the one after and the share of that, along one axis of a map."""
    inside = tl.minimum(tl.maximum(pixel, 0.0), limit) * scale
    before = tl.minimum(inside.to(tl.int32), side - 1)
    share = inside - before.to(tl.float32) if BILINEAR else inside * 0.0
    return before, tl.minimum(before + 1, side - 1), share


@triton.jit
def _load(image, row, column, width, channels, c, mask):
    place = (row * width + column)[:, None] * channels + c[None, :]
    return tl.load(image + place, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _corners(image, left, right, top, bottom, width, channels, c, mask):
    a = _load(image, top, left, width, channels, c, mask)
    b = _load(image, top, right, width, channels, c, mask)
    d = _load(image, bottom, left, width, channels, c, mask)
    e = _load(image, bottom, right, width, channels, c, mask)
    return a, b, d, e


@triton.jit
def _add(place, value, mask):
    tl.atomic_add(place, value, mask=mask, sem="relaxed")


@triton.jit
def _read(image, pixels, width, height, channels, x_scale, y_scale, limit, c, real, mask, BILINEAR: tl.constexpr):
    """What a map holds at the pixels [P, C]."""
    column = tl.load(pixels, mask=real, other=0.0)
    row = tl.load(pixels + 1, mask=real, other=0.0)
    left, right, dx = _axis(column, x_scale, limit, width, BILINEAR)
    top, bottom, dy = _axis(row, y_scale, limit, height, BILINEAR)
    if BILINEAR:
        a, b, d, e = _corners(image, left, right, top, bottom, width, channels, c, mask)
        x_share, y_share = dx[:, None], dy[:, None]
        value = (a * (1 - x_share) + b * x_share) * (1 - y_share) + (d * (1 - x_share) + e * x_share) * y_share
    else:
        value = _load(image, top, left, width, channels, c, mask)
    return value


@triton.jit
def view_pool_fwd_kernel(
    image, pixels, out, num_points, width, height, channels, x_scale, y_scale, limit, pitch, total, offset,
    VIEWS: tl.constexpr, DIVISOR: tl.constexpr, BILINEAR: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    real = p < num_points
    mask = real[:, None] & (c < channels)[None, :]
    mean = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    squares = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    most = tl.full((BLOCK_P, BLOCK_C), float("-inf"), dtype=tl.float32)
    for view in tl.static_range(VIEWS):
        here = image + (b * VIEWS + view // DIVISOR) * height * width * channels
        at = pixels + ((b * VIEWS + view) * num_points + p) * 2
        value = _read(here, at, width, height, channels, x_scale, y_scale, limit, c, real, mask, BILINEAR)
        apart = value - mean
        mean += apart / (view + 1)
        squares += apart * (value - mean)
        most = tl.maximum(most, value)
    deviation = tl.sqrt(squares / VIEWS + 1e-6)
    kind = out.dtype.element_ty
    place = out + (b * num_points + p)[:, None] * pitch + offset + c[None, :]
    tl.store(place, most.to(kind), mask=mask)
    tl.store(place + total, mean.to(kind), mask=mask)
    tl.store(place + 2 * total, deviation.to(kind), mask=mask)


@triton.jit
def view_pool_bwd_kernel(
    image, pixels, v_out, v_image, v_pixels, num_points, width, height, channels, x_scale, y_scale, limit, pitch, total,
    offset,
    VIEWS: tl.constexpr, DIVISOR: tl.constexpr, BILINEAR: tl.constexpr,
    WANT_MAP: tl.constexpr, WANT_PIXELS: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    real = p < num_points
    mask = real[:, None] & (c < channels)[None, :]
    mean = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    squares = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    most = tl.full((BLOCK_P, BLOCK_C), float("-inf"), dtype=tl.float32)
    winner = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.int32)
    for view in range(VIEWS):
        here = image + (b * VIEWS + view // DIVISOR) * height * width * channels
        at = pixels + ((b * VIEWS + view) * num_points + p) * 2
        value = _read(here, at, width, height, channels, x_scale, y_scale, limit, c, real, mask, BILINEAR)
        apart = value - mean
        mean += apart / (view + 1)
        squares += apart * (value - mean)
        winner = tl.where(value > most, view, winner)
        most = tl.maximum(most, value)
    row = v_out + (b * num_points + p)[:, None] * pitch + offset + c[None, :]
    by_most = tl.load(row, mask=mask, other=0.0).to(tl.float32)
    by_mean = tl.load(row + total, mask=mask, other=0.0).to(tl.float32)
    by_deviation = tl.load(row + 2 * total, mask=mask, other=0.0).to(tl.float32)
    by_deviation = by_deviation / tl.sqrt(squares / VIEWS + 1e-6)
    for view in range(VIEWS):
        plane = (b * VIEWS + view // DIVISOR) * height * width * channels
        at = ((b * VIEWS + view) * num_points + p) * 2
        column = tl.load(pixels + at, mask=real, other=0.0)
        line = tl.load(pixels + at + 1, mask=real, other=0.0)
        left, right, dx = _axis(column, x_scale, limit, width, BILINEAR)
        top, bottom, dy = _axis(line, y_scale, limit, height, BILINEAR)
        dx, dy = dx[:, None], dy[:, None]
        if BILINEAR:
            a, e, d, f = _corners(image + plane, left, right, top, bottom, width, channels, c, mask)
            value = (a * (1 - dx) + e * dx) * (1 - dy) + (d * (1 - dx) + f * dx) * dy
        else:
            value = _load(image + plane, top, left, width, channels, c, mask)
        v = (by_mean + by_deviation * (value - mean)) / VIEWS + tl.where(winner == view, by_most, 0.0)
        if WANT_MAP:
            into = v_image + plane + c[None, :]
            _add(into + (top * width + left)[:, None] * channels, v * (1 - dx) * (1 - dy), mask)
            if BILINEAR:
                _add(into + (top * width + right)[:, None] * channels, v * dx * (1 - dy), mask)
                _add(into + (bottom * width + left)[:, None] * channels, v * (1 - dx) * dy, mask)
                _add(into + (bottom * width + right)[:, None] * channels, v * dx * dy, mask)
        if WANT_PIXELS and BILINEAR:
            v = tl.where(mask, v, 0.0)
            by_column = tl.sum(v * ((e - a) * (1 - dy) + (f - d) * dy), 1) * x_scale
            by_line = tl.sum(v * ((d - a) * (1 - dx) + (f - e) * dx), 1) * y_scale
            _add(v_pixels + at, tl.where((column > 0) & (column < limit), by_column, 0.0), real)
            _add(v_pixels + at + 1, tl.where((line > 0) & (line < limit), by_line, 0.0), real)
