"""Rows of PNG, compiled by numba; other threads run on meanwhile."""

from __future__ import annotations

from numba import njit


@njit(cache=True, nogil=True)
def unfilter_kernel(lines, step, made):
    """Adds to each stored byte what its row's filter guesses it to be, from bytes that are known by then.

    Most rows look at one neighbour. A loop for each of those is twice as fast as one that asks at every byte.
    """
    height, row = made.shape
    for y in range(height):
        kind = lines[y, 0]
        if kind == 2 and y > 0:
            for x in range(row):
                made[y, x] = lines[y, 1 + x] + made[y - 1, x]
        elif kind == 1:
            for x in range(min(step, row)):
                made[y, x] = lines[y, 1 + x]
            for x in range(step, row):
                made[y, x] = lines[y, 1 + x] + made[y, x - step]
        elif kind == 0 or kind == 2:  # nothing is above the first row
            for x in range(row):
                made[y, x] = lines[y, 1 + x]
        else:
            for x in range(row):
                left = int(made[y, x - step]) if x >= step else 0
                up = int(made[y - 1, x]) if y > 0 else 0
                corner = int(made[y - 1, x - step]) if y > 0 and x >= step else 0
                made[y, x] = (int(lines[y, 1 + x]) + _guess(kind, left, up, corner)) & 255


@njit(cache=True, nogil=True)
def _guess(kind, left, up, corner):
    """The mean of two neighbours, or that one of three which is nearest to where they lead."""
    if kind == 3:
        return (left + up) >> 1
    to_left, to_up, to_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
    if to_left <= to_up and to_left <= to_corner:
        return left
    return up if to_up <= to_corner else corner
