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
def _boxes(runs, numbers, num):
    """First row, first column and width of each region's box, and the pixels of the largest with an edge of one."""
    boxes = np.zeros((num + 1, 3), np.int64)
    bottoms, rights = np.zeros(num + 1, np.int64), np.zeros(num + 1, np.int64)
    for n in range(runs.shape[0] - 1, -1, -1):
        region = numbers[n]
        fresh = bottoms[region] == 0
        bottoms[region] = max(bottoms[region], runs[n, 0] + 1)
        rights[region] = max(rights[region], runs[n, 2])
        boxes[region, 0] = runs[n, 0]
        boxes[region, 1] = runs[n, 1] if fresh else min(boxes[region, 1], runs[n, 1])
    most = 0
    for region in range(1, num + 1):
        boxes[region, 2] = rights[region] - boxes[region, 1]
        most = max(most, (bottoms[region] - boxes[region, 0] + 2) * (boxes[region, 2] + 2))
    return boxes, most


@njit(**FAST)
def watershed_kernel(levels, seeds, runs, numbers, num, labels):
    """Fills in the seeds grown over the mask, lowest level first and of equal levels in order of arrival.

    ``runs`` are those of mask and seeds together, ``numbers`` their regions: what happens in one does not matter to the
    others. Each is worked on in a small picture with an edge of one pixel, so that every pixel has its neighbours; one
    number there says what is free to grow into, and at which level. One list of waiting pixels for each level takes the
    place of a heap. A seed's pixel with nothing to grow into beside it will never have any, and does not wait.
    """
    boxes, most = _boxes(runs, numbers, num)
    free, grown, following = np.full(most, -1, np.int16), np.empty(most, np.int32), np.empty(most, np.int32)
    first, last = np.full(NUM_LEVELS, -1, np.int32), np.full(NUM_LEVELS, -1, np.int32)
    order, begins = _in_turn(numbers, num)
    for region in range(1, num + 1):
        wide, mine = boxes[region, 2] + 2, order[begins[region] : begins[region + 1]]
        corner = (boxes[region, 0] - 1) * wide + boxes[region, 1] - 1
        for run in mine:
            y = runs[run, 0]
            for x in range(runs[run, 1], runs[run, 2]):
                place = y * wide + x - corner
                grown[place] = seeds[y, x]
                if seeds[y, x] == 0:
                    free[place] = levels[y, x]
        lowest, highest = NUM_LEVELS, -1
        for run in mine:
            y = runs[run, 0]
            for x in range(runs[run, 1], runs[run, 2]):
                here = y * wide + x - corner
                if seeds[y, x] and max(free[here - wide], free[here - 1], free[here + 1], free[here + wide]) >= 0:
                    level = int(levels[y, x])
                    if first[level] < 0:
                        first[level] = here
                    else:
                        following[last[level]] = here
                    last[level], following[here] = here, -1
                    lowest, highest = min(lowest, level), max(highest, level)
        while lowest <= highest:
            here = int(first[lowest])
            if here < 0:
                lowest += 1
                continue
            first[lowest] = following[here]
            for place in (here - wide, here - 1, here + 1, here + wide):
                level = int(free[place])
                if level < 0:
                    continue
                free[place], grown[place] = -1, grown[here]
                if first[level] < 0:
                    first[level] = place
                else:
                    following[last[level]] = place
                last[level], following[place] = place, -1
                lowest, highest = min(lowest, level), max(highest, level)
        for run in mine:
            y = runs[run, 0]
            for x in range(runs[run, 1], runs[run, 2]):
                place = y * wide + x - corner
                labels[y, x], free[place] = grown[place], -1
