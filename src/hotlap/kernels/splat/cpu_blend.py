"""Tiles of pixels from lists of splats and gradients back again, compiled by Numba; arithmetic is float64.

A tile's pixels are few enough to stay in the first cache, so the loop is over the splats outside and over the pixels
that a splat reaches inside. Each tile writes its own pixels and each pair of a tile and a splat its own gradients;
these are summed splat by splat afterwards, so nothing depends on how many threads there are.
"""

from __future__ import annotations

import math

import numpy as np

from hotlap.kernels.splat.cpu_project import HALF_HEIGHT, OPACITY, REACH, XX, XY, YY, X, Y, compiled
from hotlap.kernels.splat.frame import MAX_ALPHA, MIN_ALPHA, MIN_TRANSMITTANCE, TILE


@compiled
def rows_of(row, top, bottom):
    """The rows from ``top`` to ``bottom`` that a splat reaches, the last one not included."""
    low, high = row[Y] - row[HALF_HEIGHT] - 0.5, row[Y] + row[HALF_HEIGHT] - 0.5
    return int(max(float(top), np.ceil(low - 1e-6))), int(min(bottom - 1.0, np.floor(high + 1e-6))) + 1


@compiled
def columns_of(row, dy, left, right):
    """The columns from ``left`` to ``right`` that a splat reaches in a row, the last one not included."""
    middle = row[XY] * dy
    inside = middle * middle - row[XX] * (row[YY] * dy * dy - 2 * row[REACH])
    half = math.sqrt(max(inside, 0.0)) / row[XX]
    center = row[X] + middle / row[XX] - 0.5
    low, high = np.ceil(center - half - 1e-6), np.floor(center + half + 1e-6)
    return int(min(max(low, float(left)), float(right))), int(max(min(high, right - 1.0), left - 1.0)) + 1


@compiled
def alpha_of(row, dx, dy):
    """What a splat covers of a pixel; 0 where it does not count. Not held down to ``MAX_ALPHA``."""
    sigma = 0.5 * (row[XX] * dx * dx + row[YY] * dy * dy) + row[XY] * dx * dy
    if sigma < 0.0:
        return 0.0
    alpha = row[OPACITY] * math.exp(-sigma)
    return alpha if alpha >= MIN_ALPHA else 0.0


@compiled
def box_of(tile, width, height):
    """A tile's camera, and its pixels: left, right, top and bottom, the ends not included."""
    across, down = (width + TILE - 1) // TILE, (height + TILE - 1) // TILE
    place = tile % (across * down)
    left, top = place % across * TILE, place // across * TILE
    return tile // (across * down), left, min(left + TILE, width), top, min(top + TILE, height)


@compiled
def splat_blend_fwd_kernel(first, last, begins, listed, owners, screen, shades, behind, colors, alphas, light, reached):
    """Writes colours and alphas of the tiles from ``first`` to ``last``, the light left and the last pair that counted.

    ``reached`` is one more than that pair's place in ``listed``, or 0.
    """
    height, width, channels = colors.shape[1:]
    left_over, done = np.empty((TILE, TILE)), np.empty((TILE, TILE), np.int64)
    sums = np.empty((TILE, TILE, channels))
    for tile in range(first, last):
        c, left, right, top, bottom = box_of(tile, width, height)
        left_over[:], sums[:] = 1.0, 0.0
        done[:] = 0
        still_open = (right - left) * (bottom - top)
        for k in range(begins[tile], begins[tile + 1]):
            g = owners[listed[k]]
            row = screen[g]
            from_row, to_row = rows_of(row, top, bottom)
            for y in range(from_row, to_row):
                dy = row[Y] - (y + 0.5)
                from_column, to_column = columns_of(row, dy, left, right)
                for x in range(from_column, to_column):
                    if done[y - top, x - left] < 0:
                        continue
                    alpha = min(alpha_of(row, row[X] - (x + 0.5), dy), MAX_ALPHA)
                    if alpha == 0.0:
                        continue
                    before = left_over[y - top, x - left]
                    if before * (1.0 - alpha) <= MIN_TRANSMITTANCE:
                        done[y - top, x - left] = -1 - done[y - top, x - left]
                        still_open -= 1
                        continue
                    for channel in range(channels):
                        sums[y - top, x - left, channel] += alpha * before * shades[g, channel]
                    left_over[y - top, x - left] = before * (1.0 - alpha)
                    done[y - top, x - left] = k + 1
            if still_open == 0:
                break
        for y in range(top, bottom):
            for x in range(left, right):
                seen = done[y - top, x - left]
                reached[c, y, x] = seen if seen >= 0 else -1 - seen
                light[c, y, x] = left_over[y - top, x - left]
                alphas[c, y, x, 0] = 1.0 - light[c, y, x]
                for channel in range(channels):
                    colors[c, y, x, channel] = sums[y - top, x - left, channel] + light[c, y, x] * behind[c, channel]


@compiled
def splat_blend_bwd_kernel(
    first, last, begins, listed, owners, screen, shades, behind, light, reached, v_colors, v_alphas, absgrad, partial
):
    """Writes the gradients of each pair of the tiles from ``first`` to ``last``: six, then the channels, then two more.

    Back to front, ``after`` is the gradient of the light that passes a splat: no sum of colours has to be kept.
    """
    height, width, channels = v_colors.shape[1:]
    left_over, after = np.empty((TILE, TILE)), np.empty((TILE, TILE))
    for tile in range(first, last):
        c, left, right, top, bottom = box_of(tile, width, height)
        end = 0
        for y in range(top, bottom):
            for x in range(left, right):
                end = max(end, reached[c, y, x])
                left_over[y - top, x - left] = light[c, y, x]
                slope = -v_alphas[c, y, x, 0]
                for channel in range(channels):
                    slope += behind[c, channel] * v_colors[c, y, x, channel]
                after[y - top, x - left] = slope
        for k in range(end - 1, begins[tile] - 1, -1):
            g, found = owners[listed[k]], partial[listed[k]]
            row = screen[g]
            from_row, to_row = rows_of(row, top, bottom)
            for y in range(from_row, to_row):
                dy = row[Y] - (y + 0.5)
                from_column, to_column = columns_of(row, dy, left, right)
                for x in range(from_column, to_column):
                    if k >= reached[c, y, x]:
                        continue
                    dx = row[X] - (x + 0.5)
                    whole = alpha_of(row, dx, dy)
                    if whole == 0.0:
                        continue
                    alpha = min(whole, MAX_ALPHA)
                    before = left_over[y - top, x - left] / (1.0 - alpha)
                    left_over[y - top, x - left] = before
                    shine = 0.0
                    for channel in range(channels):
                        shine += shades[g, channel] * v_colors[c, y, x, channel]
                        found[6 + channel] += alpha * before * v_colors[c, y, x, channel]
                    v_alpha = before * (shine - after[y - top, x - left])
                    after[y - top, x - left] += alpha * (shine - after[y - top, x - left])
                    if whole > MAX_ALPHA:
                        continue
                    found[OPACITY] += whole / row[OPACITY] * v_alpha
                    v_sigma = -whole * v_alpha
                    v_x, v_y = v_sigma * (row[XX] * dx + row[XY] * dy), v_sigma * (row[XY] * dx + row[YY] * dy)
                    found[X] += v_x
                    found[Y] += v_y
                    found[XX] += 0.5 * v_sigma * dx * dx
                    found[XY] += v_sigma * dx * dy
                    found[YY] += 0.5 * v_sigma * dy * dy
                    if absgrad:
                        found[6 + channels] += abs(v_x)
                        found[7 + channels] += abs(v_y)


@compiled
def splat_sum_kernel(first, last, offsets, partial, sums):
    """Writes the sums over each splat's pairs, one after the other."""
    for g in range(first, last):
        for pair in range(offsets[g], offsets[g + 1]):
            for k in range(sums.shape[1]):
                sums[g, k] += partial[pair, k]
