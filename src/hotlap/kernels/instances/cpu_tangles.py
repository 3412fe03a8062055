"""Which rings bound no area, compiled by numba: sides are compared with those beside them only."""

from __future__ import annotations

import numpy as np
from numba import njit

from hotlap.kernels.instances.cpu_regions import FAST


@njit(**FAST)
def _side(points, a, b, c):
    """Above 0, below 0 or 0: where a point lies from the line through two others."""
    along_x, along_y = points[b, 0] - points[a, 0], points[b, 1] - points[a, 1]
    return np.sign(along_x * (points[c, 1] - points[a, 1]) - along_y * (points[c, 0] - points[a, 0]))


@njit(**FAST)
def _goes_back(points, a, b, c):
    """Whether the way from b to c lies on that from a to b."""
    if _side(points, a, b, c) != 0:
        return False
    across = (points[b, 0] - points[a, 0]) * (points[c, 0] - points[b, 0])
    return across + (points[b, 1] - points[a, 1]) * (points[c, 1] - points[b, 1]) < 0


@njit(**FAST)
def _meets(points, after, i, j):
    """Whether two sides share a point; of two that follow each other, more than the corner between them."""
    to_i, to_j = after[i], after[j]
    if to_i == j or to_j == i:
        return (to_i == j and _goes_back(points, i, j, to_j)) or (to_j == i and _goes_back(points, j, i, to_i))
    for axis in range(2):
        if max(points[i, axis], points[to_i, axis]) < min(points[j, axis], points[to_j, axis]):
            return False
        if max(points[j, axis], points[to_j, axis]) < min(points[i, axis], points[to_i, axis]):
            return False
    if _side(points, i, to_i, j) * _side(points, i, to_i, to_j) > 0:
        return False
    return _side(points, j, to_j, i) * _side(points, j, to_j, to_i) <= 0


@njit(**FAST)
def _any_meet(points, after, mine):
    """Whether two of these sides meet; they are put in order along the longer side of their box."""
    low, high = points[mine[0]].copy(), points[mine[0]].copy()
    for n in mine:
        for axis in range(2):
            low[axis], high[axis] = min(low[axis], points[n, axis]), max(high[axis], points[n, axis])
    axis = 0 if high[0] - low[0] >= high[1] - low[1] else 1
    begins = np.empty(mine.size, np.int64)
    for n in range(mine.size):
        begins[n] = min(points[mine[n], axis], points[after[mine[n]], axis])
    order = np.argsort(begins)
    for n in range(mine.size):
        i = mine[order[n]]
        end = max(points[i, axis], points[after[i], axis])
        for m in range(n + 1, mine.size):
            if begins[order[m]] > end:
                break
            if _meets(points, after, i, mine[order[m]]):
                return True
    return False


@njit(**FAST)
def _is_within(points, after, ring, mine, which, spot):
    """Whether an odd number of the sides of other rings lies to the right of a spot."""
    odd = False
    for n in mine:
        if ring[n] == which or (points[n, 1] > points[spot, 1]) == (points[after[n], 1] > points[spot, 1]):
            continue
        if (_side(points, n, after[n], spot) > 0) == (points[after[n], 1] > points[n, 1]):
            odd = not odd
    return odd


@njit(**FAST)
def tangled_kernel(points, starts, after, ring, holes, order, begins, out):
    """For each group of sides: whether they meet, or a hole does not lie within the others, or another ring does."""
    for group in range(begins.size - 1):
        mine = order[begins[group] : begins[group + 1]]
        out[group] = _any_meet(points, after, mine)
        if out[group] or ring[mine[0]] == ring[mine[-1]]:  # a ring alone has nothing to lie in
            continue
        for n in mine:
            if n == starts[ring[n]] and _is_within(points, after, ring, mine, ring[n], n) != holes[ring[n]]:
                out[group] = True
                break
