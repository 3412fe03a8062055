"""Regions of masks and what grows over them, compiled by numba: along runs of pixels, and one region after the other.

A picture is larger than a core's caches, one of its regions is not: going through them in turn takes a fraction of the
time of going through all of them at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

FAST: Any = {"cache": True, "nogil": True, "error_model": "numpy"}
NUM_LEVELS = 256


@njit(**FAST)
def root_of(parent, place):
    """Where the chain of parents ends; it is made shorter on the way."""
    while parent[place] != place:
        parent[place] = parent[parent[place]]
        place = parent[place]
    return place


@njit(**FAST)
def runs_kernel(mask, eights, runs):
    """Notes each run of a mask along its rows (row, first column, column after the last); how many there are.

    ``eights`` are the same bytes, eight to a number: where it is 0, eight pixels are passed at once. With no room in
    ``runs`` they are only counted.
    """
    height, width = mask.shape
    count = 0
    for y in range(height):
        x, before = 0, y * width
        while x < width:
            if not mask[y, x]:
                aligned = (before + x) & 7 == 0 and x + 8 <= width
                x += 8 if aligned and eights[(before + x) >> 3] == 0 else 1
                continue
            first = x
            while x < width and mask[y, x]:
                x += 1
            if count < runs.shape[0]:
                runs[count, 0], runs[count, 1], runs[count, 2] = y, first, x
            count += 1
    return count


@njit(**FAST)
def number_kernel(runs, numbers):
    """Fills in which 4-connected region each run is of, numbered in the order of their first pixels; how many."""
    num = runs.shape[0]
    parent = np.arange(num).astype(np.int32)
    above = 0
    for n in range(num):
        y, first, last = runs[n, 0], runs[n, 1], runs[n, 2]
        while runs[above, 0] < y - 1 or (runs[above, 0] == y - 1 and runs[above, 2] <= first):
            above += 1
        other = above
        while runs[other, 0] == y - 1 and runs[other, 1] < last:
            a, b = root_of(parent, n), root_of(parent, other)
            parent[max(a, b)] = min(a, b)
            other += 1
    count = 0
    for n in range(num):
        root = root_of(parent, n)
        if root == n:
            count += 1
            numbers[n] = count
        else:
            numbers[n] = numbers[root]
    return count


@njit(**FAST)
def fill_kernel(runs, numbers, labels):
    """Writes each run's number into its pixels."""
    for n in range(runs.shape[0]):
        for x in range(runs[n, 1], runs[n, 2]):
            labels[runs[n, 0], x] = numbers[n]


@njit(**FAST)
def _in_turn(numbers, num):
    """The runs' places in the order of their regions, and where each region's begin."""
    begins = np.zeros(num + 2, np.int64)
    for number in numbers:
        begins[number + 1] += 1
    for n in range(1, num + 2):
        begins[n] += begins[n - 1]
    order, free = np.empty(numbers.size, np.int64), begins.copy()
    for n in range(numbers.size):
        order[free[numbers[n]]] = n
        free[numbers[n]] += 1
    return order, begins


@njit(**FAST)
def watershed_kernel(levels, mask, runs, numbers, num, labels):
    """Grows the seeds in ``labels`` over ``mask``, lowest level first and of equal levels in order of arrival.

    ``runs`` are those of mask and seeds together, ``numbers`` their regions: what happens in one does not matter to the
    others. One list of waiting pixels for each level takes the place of a heap. A seed's pixel with nothing to grow
    into beside it will never have any, and does not wait.
    """
    height, width = levels.shape
    following = np.empty(height * width, np.int32)
    first, last = np.full(NUM_LEVELS, -1, np.int32), np.full(NUM_LEVELS, -1, np.int32)
    steps_y, steps_x = (-1, 0, 0, 1), (0, -1, 1, 0)
    order, begins = _in_turn(numbers, num)
    for region in range(1, num + 1):
        lowest, highest = NUM_LEVELS, -1
        for run in order[begins[region] : begins[region + 1]]:
            y = runs[run, 0]
            for x in range(runs[run, 1], runs[run, 2]):
                if labels[y, x] == 0:
                    continue
                grows = y > 0 and labels[y - 1, x] == 0 and mask[y - 1, x]
                grows |= x > 0 and labels[y, x - 1] == 0 and mask[y, x - 1]
                grows |= x < width - 1 and labels[y, x + 1] == 0 and mask[y, x + 1]
                grows |= y < height - 1 and labels[y + 1, x] == 0 and mask[y + 1, x]
                if grows:
                    level, place = levels[y, x], y * width + x
                    if first[level] < 0:
                        first[level] = place
                    else:
                        following[last[level]] = place
                    last[level], following[place] = place, -1
                    lowest, highest = min(lowest, level), max(highest, level)
        while lowest <= highest:
            here = first[lowest]
            if here < 0:
                lowest += 1
                continue
            first[lowest] = following[here]
            y = np.int64(np.uint32(here) // np.uint32(width))  # signed ones take several times as long
            x = here - y * width
            for n in range(4):
                to_y, to_x = y + steps_y[n], x + steps_x[n]
                if to_y < 0 or to_x < 0 or to_y >= height or to_x >= width:
                    continue
                if labels[to_y, to_x] != 0 or not mask[to_y, to_x]:
                    continue
                labels[to_y, to_x] = labels[y, x]
                level, place = levels[to_y, to_x], to_y * width + to_x
                if first[level] < 0:
                    first[level] = place
                else:
                    following[last[level]] = place
                last[level], following[place] = place, -1
                lowest, highest = min(lowest, level), max(highest, level)
