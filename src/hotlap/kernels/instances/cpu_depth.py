"""How deep inside its object each pixel lies, compiled by numba: along the runs of a mask where that will do.

Rows are gone along so that the inner loops are over neighbours in memory, which the compiler turns into vectors.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from hotlap.kernels.instances.cpu_regions import FAST

NOWHERE = 1 << 29
"""Farther than any background: in a column that has none."""


@njit(**FAST)
def _columns(runs, away):
    """Fills in how far the nearest background in its column is from each pixel of the runs; elsewhere it is 0."""
    height = away.shape[0]
    for n in range(runs.shape[0]):
        y = runs[n, 0]
        for x in range(runs[n, 1], runs[n, 2]):
            away[y, x] = away[y - 1, x] + 1 if y else NOWHERE
    for n in range(runs.shape[0] - 1, -1, -1):
        y = runs[n, 0]
        for x in range(runs[n, 1], runs[n, 2]):
            other = away[y + 1, x] + 1 if y + 1 < height else NOWHERE
            away[y, x] = other if other < away[y, x] else away[y, x]


@njit(**FAST)
def distance_kernel(runs, out):
    """Fills in the distance to the nearest background for each pixel of the runs, which may not be all of the picture.

    Along a run the lower envelope of the parabolas over its columns is followed (Meijster's way, in whole numbers). The
    background at a run's ends hides all that lies beyond.
    """
    width = out.shape[1]
    away = np.zeros(out.shape, np.int32)
    _columns(runs, away)
    at, tips, since = np.empty(width, np.int64), np.empty(width, np.int64), np.empty(width, np.int64)
    for n in range(runs.shape[0]):
        y, first, last = runs[n, 0], max(runs[n, 1] - 1, 0), min(runs[n, 2], width - 1)
        top = -1
        for x in range(first, last + 1):
            tip = np.int64(away[y, x])
            if tip >= NOWHERE:
                continue
            tip *= tip
            while top >= 0 and (since[top] - at[top]) ** 2 + tips[top] > (since[top] - x) ** 2 + tip:
                top -= 1
            begins = first
            if top >= 0:
                ahead = x * x - at[top] * at[top] + tip - tips[top]
                begins = 1 + np.int64(float(ahead) / float(2 * (x - at[top])))
            if begins <= last:
                top += 1
                at[top], tips[top], since[top] = x, tip, begins
        for x in range(last, first - 1, -1):
            if runs[n, 1] <= x < runs[n, 2]:
                out[y, x] = np.sqrt(float((x - at[top]) ** 2 + tips[top]))
            if x == since[top]:
                top -= 1


@njit(**FAST)
def _mirrored(place, size):
    """The place within a line that a place beyond its ends mirrors."""
    place %= 2 * size
    return place if place < size else 2 * size - 1 - place


@njit(**FAST)
def smooth_kernel(picture, used, weights, out):
    """Fills in the picture blurred down its columns, then along its rows; each sum in 64 bits, each result in 32.

    ``weights`` are those of the middle and of 1 to 4 pixels away. Rows with nothing ``used`` in reach stay as they are.
    """
    height, width = picture.shape
    w0, w1, w2, w3, w4 = weights
    line = np.empty(width + 8, np.float32)
    rows = np.empty(9, np.int64)
    for y in range(height):
        near = False
        for n in range(9):
            rows[n] = _mirrored(y + n - 4, height)
            near |= used[rows[n]]
        if not near:
            continue
        a, b, c, d, e = picture[rows[0]], picture[rows[1]], picture[rows[2]], picture[rows[3]], picture[rows[4]]
        f, g, h, i = picture[rows[5]], picture[rows[6]], picture[rows[7]], picture[rows[8]]
        inner = line[4 : 4 + width]
        for x in range(width):
            total = np.float64(e[x]) * w0
            total += (np.float64(a[x]) + np.float64(i[x])) * w4
            total += (np.float64(b[x]) + np.float64(h[x])) * w3
            total += (np.float64(c[x]) + np.float64(g[x])) * w2
            total += (np.float64(d[x]) + np.float64(f[x])) * w1
            inner[x] = total
        for n in range(4):
            line[n], line[width + 4 + n] = inner[_mirrored(n - 4, width)], inner[_mirrored(width + n, width)]
        made = out[y]
        for x in range(width):
            total = np.float64(line[x + 4]) * w0
            total += (np.float64(line[x]) + np.float64(line[x + 8])) * w4
            total += (np.float64(line[x + 1]) + np.float64(line[x + 7])) * w3
            total += (np.float64(line[x + 2]) + np.float64(line[x + 6])) * w2
            total += (np.float64(line[x + 3]) + np.float64(line[x + 5])) * w1
            made[x] = total


@njit(**FAST)
def tallest_kernel(picture, runs, numbers, tops):
    """Raises the top of each run's region to the greatest of its values."""
    for n in range(runs.shape[0]):
        y, best = runs[n, 0], tops[numbers[n] - 1]
        for x in range(runs[n, 1], runs[n, 2]):
            best = picture[y, x] if picture[y, x] > best else best
        tops[numbers[n] - 1] = best


@njit(**FAST)
def _clear(line):
    """Makes each value 0; a slice that is assigned to would take seconds to compile."""
    for x in range(line.size):
        line[x] = 0


@njit(**FAST)
def _raise(line, other):
    """Makes each value the larger of itself and the other's."""
    for x in range(line.size):
        line[x] = other[x] if other[x] > line[x] else line[x]


@njit(**FAST)
def _larger(left, right, out):
    """Fills in the larger of each two."""
    for x in range(out.size):
        out[x] = right[x] if right[x] > left[x] else left[x]


@njit(**FAST)
def _along(line, spare, reach, out):
    """The greatest within ``reach`` in a line that has as many zeros on both sides; the line is used up.

    Windows of 1, 2, 4, ... until two of them cover the whole one. The compiler needs to see that what is written is not
    what is read, hence the spare line.
    """
    size, span, length = 2 * reach + 1, 1, line.size
    while 2 * span <= size:
        length -= span
        _larger(line[:length], line[span : span + length], spare[:length])
        line, spare = spare, line
        span *= 2
    _larger(line[: out.size], line[size - span : size - span + out.size], out)


@njit(**FAST)
def around_kernel(picture, reach, out):
    """Fills in the greatest value within ``reach`` rows and columns, of values of 0 or more.

    Down the columns van Herk's way: windows of a block's rows are the end of that block and the beginning of the next.
    """
    height, width = picture.shape
    down, right = min(reach, height - 1), min(reach, width - 1)
    size = 2 * down + 1
    ends, begun = np.empty((size + 1, width), picture.dtype), np.empty(width, picture.dtype)
    line, spare = np.zeros(width + 2 * right, picture.dtype), np.empty(width + 2 * right, picture.dtype)
    for block in range(-down, height - down, size):
        _clear(ends[size])
        for n in range(size - 1, -1, -1):
            inside = 0 <= block + n < height
            _larger(ends[n + 1], picture[block + n] if inside else ends[n + 1], ends[n])
        _clear(begun)
        for n in range(min(size, height - down - block)):
            if n and block + size + n - 1 < height:
                _raise(begun, picture[block + size + n - 1])
            _clear(line[:right])
            _clear(line[right + width :])
            _larger(begun, ends[n], line[right : right + width])
            _along(line, spare, right, out[block + n + down])


@njit(**FAST)
def share_kernel(depth, around, runs, out):
    """Fills in the eighth power of the depth's share of the greatest around, along the runs."""
    for n in range(runs.shape[0]):
        y = runs[n, 0]
        for x in range(runs[n, 1], runs[n, 2]):
            share = np.float64(depth[y, x] / around[y, x])
            share *= share
            share *= share
            out[y, x] = share * share
