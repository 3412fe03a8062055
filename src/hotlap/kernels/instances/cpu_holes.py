"""What rings enclose, compiled by numba: in the box of each, by how often it goes around a pixel."""

from __future__ import annotations

import numpy as np
from numba import njit

from hotlap.kernels.instances.cpu_regions import FAST


@njit(**FAST)
def _box(points, begin, end):
    """The least and greatest x and y of some points."""
    left, top = points[begin, 0], points[begin, 1]
    right, bottom = left, top
    for n in range(begin, end):
        left, right = min(left, points[n, 0]), max(right, points[n, 0])
        top, bottom = min(top, points[n, 1]), max(bottom, points[n, 1])
    return left, right, top, bottom


@njit(**FAST)
def _wind(points, begin, end, left, top, turns):
    """Notes a ring's upright sides: from the left, they add up to how often the ring goes around each pixel."""
    for n in range(begin, end):
        after = n + 1 if n + 1 < end else begin
        x, y, to_y = points[n, 0] - left, points[n, 1] - top, points[after, 1] - top
        for row in range(to_y, y):
            turns[row, x] += 1
        for row in range(y, to_y):
            turns[row, x] -= 1


@njit(**FAST)
def filled_kernel(points, starts, rings, begins, out):
    """For each group of outer rings: pixels and runs along rows, columns and both diagonals of what they enclose."""
    for group in range(begins.size - 1):
        first = rings[begins[group]]
        left, right, top, bottom = _box(points, starts[first], starts[first + 1])
        for ring in rings[begins[group] : begins[group + 1]]:
            box = _box(points, starts[ring], starts[ring + 1])
            left, right, top, bottom = min(left, box[0]), max(right, box[1]), min(top, box[2]), max(bottom, box[3])
        # With a row of nothing above and a column of nothing on either side, every pixel has its neighbours.
        turns = np.zeros((bottom - top + 1, right - left + 2), np.int32)
        for ring in rings[begins[group] : begins[group + 1]]:
            _wind(points, starts[ring], starts[ring + 1], left - 1, top - 1, turns)
        for y in range(1, turns.shape[0]):
            around = 0
            for x in range(1, turns.shape[1]):
                around += turns[y, x]
                turns[y, x] = around
                if around:
                    out[group, 0] += 1
                    out[group, 1] += turns[y, x - 1] == 0
                    out[group, 2] += turns[y - 1, x] == 0
                    out[group, 3] += turns[y - 1, x - 1] == 0
                    out[group, 4] += turns[y - 1, x + 1] == 0


@njit(**FAST)
def holders_kernel(labels, points, starts, owners, areas, out):
    """Fills in whose hole each label lies in: of several around it, the smallest one."""
    least = np.full(out.size, np.inf)
    for ring in range(owners.size):
        if areas[ring] > 0:
            continue
        left, right, top, bottom = _box(points, starts[ring], starts[ring + 1])
        turns = np.zeros((bottom - top, right - left + 1), np.int32)
        _wind(points, starts[ring], starts[ring + 1], left, top, turns)
        for y in range(bottom - top):
            around = 0
            for x in range(right - left):
                around += turns[y, x]
                label = labels[top + y, left + x]
                if around and label != 0 and label != owners[ring] and -areas[ring] < least[label - 1]:
                    least[label - 1], out[label - 1] = -areas[ring], owners[ring]
