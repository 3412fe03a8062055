"""Pooling of several views, compiled by numba for the CPU; shares of the points or objects may run side by side."""

from __future__ import annotations

import numpy as np
from numba import njit

from hotlap.kernels.compiled import fast, inner

FAST = fast("contract", "nsz", "reassoc")
INNER = inner(FAST)
FLOOR = np.float32(1e-6)


@njit(**INNER)
def _place(pixel, scale, limit, side, bilinear):
    """The pixel before, the one after and the share of that, along one axis of a map."""
    inside = pixel if pixel > 0 else np.float32(0)
    inside = min(inside, limit) * scale
    before = min(int(inside), side - 1)
    share = inside - np.float32(before) if bilinear else np.float32(0)
    return before, min(before + 1, side - 1), share


@njit(**INNER)
def _read(image, pixel, scales, limit, bilinear, out):
    """What a map [H, W, C] holds at a pixel [2]."""
    left, right, dx = _place(pixel[0], scales[0], limit, image.shape[1], bilinear)
    top, bottom, dy = _place(pixel[1], scales[1], limit, image.shape[0], bilinear)
    if not bilinear:
        out[:] = image[top, left]
        return
    one = np.float32(1)
    w00, w01, w10, w11 = (one - dx) * (one - dy), dx * (one - dy), (one - dx) * dy, dx * dy
    a, b, c, d = image[top, left], image[top, right], image[bottom, left], image[bottom, right]
    for k in range(out.size):
        out[k] = w00 * a[k] + w01 * b[k] + w10 * c[k] + w11 * d[k]


@njit(**INNER)
def _moments(found, most, mean, deviation):
    """Maximum, mean and deviation of found [V, C] over the views."""
    views = found.shape[0]
    part = np.float32(1.0 / views)
    for k in range(mean.size):
        most[k], mean[k], deviation[k] = found[0, k], found[0, k], np.float32(0)
    for v in range(1, views):
        for k in range(mean.size):
            most[k] = max(most[k], found[v, k])
            mean[k] += found[v, k]
    for k in range(mean.size):
        mean[k] *= part
    for v in range(views):
        for k in range(mean.size):
            apart = found[v, k] - mean[k]
            deviation[k] += apart * apart
    for k in range(mean.size):
        deviation[k] = np.sqrt(deviation[k] * part + FLOOR)


@njit(**FAST)
def pool_fwd_kernel(begin, end, image, pixels, scales, limit, bilinear, divisor, total, offset, out):
    """Points ``begin`` to ``end`` of all objects: one map [B * V, H, W, C] into its columns of out [B, N, D]."""
    views, count, channels = pixels.shape[1], pixels.shape[2], image.shape[3]
    found = np.empty((views, channels), np.float32)
    for number in range(begin, end):
        b, n = number // count, number % count
        for v in range(views):
            _read(image[b * views + v // divisor], pixels[b, v, n], scales, limit, bilinear, found[v])
        row = out[b, n, offset:]
        _moments(found, row[:channels], row[total : total + channels], row[2 * total : 2 * total + channels])


@njit(**INNER)
def _spread(image, pixel, scales, limit, bilinear, v, v_image):
    """Adds a gradient v [C] of what was read to that of the map; returns the slopes by column and row of the map."""
    left, right, dx = _place(pixel[0], scales[0], limit, image.shape[1], bilinear)
    top, bottom, dy = _place(pixel[1], scales[1], limit, image.shape[0], bilinear)
    one = np.float32(1)
    by_column, by_row = np.float32(0), np.float32(0)
    for k in range(v.size):
        v_image[top, left, k] += (one - dx) * (one - dy) * v[k]
        if bilinear:
            v_image[top, right, k] += dx * (one - dy) * v[k]
            v_image[bottom, left, k] += (one - dx) * dy * v[k]
            v_image[bottom, right, k] += dx * dy * v[k]
            a, b, c, d = image[top, left, k], image[top, right, k], image[bottom, left, k], image[bottom, right, k]
            by_column += v[k] * ((b - a) * (one - dy) + (d - c) * dy)
            by_row += v[k] * ((c - a) * (one - dx) + (d - b) * dx)
    return by_column, by_row


@njit(**FAST)
def pool_bwd_kernel(
    begin, end, image, pixels, scales, limit, bilinear, divisor, total, offset, v_out, v_image, v_pixels
):
    """Objects ``begin`` to ``end``: adds the gradients by one map and, through it, by the pixels."""
    views, count, channels = pixels.shape[1], pixels.shape[2], image.shape[3]
    found, v_found = np.empty((views, channels), np.float32), np.empty(channels, np.float32)
    most, mean, deviation = np.empty((3, channels), np.float32)
    part = np.float32(1.0 / views)
    for b in range(begin, end):
        for n in range(count):
            for v in range(views):
                _read(image[b * views + v // divisor], pixels[b, v, n], scales, limit, bilinear, found[v])
            _moments(found, most, mean, deviation)
            row = v_out[b, n, offset:]
            for v in range(views):
                for k in range(channels):
                    by_deviation = row[2 * total + k] * (found[v, k] - mean[k]) / deviation[k]
                    v_found[k] = part * (row[total + k] + by_deviation)
                    if found[v, k] == most[k]:
                        v_found[k] += row[k]
                        most[k] = np.float32(np.inf)  # the first of equal ones has it all
                at, pixel = b * views + v // divisor, pixels[b, v, n]
                by_column, by_row = _spread(image[at], pixel, scales, limit, bilinear, v_found, v_image[at])
                v_pixels[b, v, n, 0] += by_column * scales[0] if 0 < pixel[0] < limit else np.float32(0)
                v_pixels[b, v, n, 1] += by_row * scales[1] if 0 < pixel[1] < limit else np.float32(0)
