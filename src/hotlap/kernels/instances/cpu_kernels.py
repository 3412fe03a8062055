"""From maps to instances and their outlines, compiled by numba; each image is one thread's work and needs no lock."""

from __future__ import annotations

import numpy as np
from numba import njit

from hotlap.kernels.instances.cpu_regions import FAST, root_of

FAR = 1 << 40
"""Farther than any coordinate."""


@njit(**FAST)
def grade_kernel(foreground, heights, threshold, seed_threshold, mask, cores, levels):
    """Fills what the watershed needs: where objects are, where they start, and the higher the lower a level."""
    for y in range(foreground.shape[0]):
        for x in range(foreground.shape[1]):
            height = heights[y, x]
            mask[y, x] = foreground[y, x] >= threshold
            cores[y, x] = mask[y, x] and height >= seed_threshold
            levels[y, x] = 255 - int(min(max(height, 0.0), 1.0) * 255 + 0.5)


@njit(**FAST)
def sides_kernel(labels, heights, tops, sides, levels):
    """Notes the two labels on each side where labels meet, and the lower of the heights there; how many there are.

    With no room in ``sides`` they are only counted. Each label's top is raised to its greatest height.
    """
    height, width = labels.shape
    count = 0
    for y in range(height):
        for x in range(width):
            label = labels[y, x]
            if label == 0:
                continue
            if heights[y, x] > tops[label]:
                tops[label] = heights[y, x]
            for n in range(2):
                to_y, to_x = y + n, x + 1 - n
                if to_y >= height or to_x >= width:
                    continue
                other = labels[to_y, to_x]
                if other == 0 or other == label:
                    continue
                if count < sides.shape[0]:
                    sides[count, 0], sides[count, 1] = label, other
                    levels[count] = min(heights[y, x], heights[to_y, to_x])
                count += 1
    return count


@njit(**FAST)
def merge_kernel(labels, tops, sides, levels, order, share):
    """Gives labels one number where the pass between them is high; the highest passes are looked at first."""
    parent = np.arange(tops.size).astype(np.int32)
    for n in order:
        a, b = root_of(parent, sides[n, 0]), root_of(parent, sides[n, 1])
        if a != b and levels[n] >= share * min(tops[a], tops[b]):
            parent[max(a, b)] = min(a, b)
            tops[min(a, b)] = max(tops[a], tops[b])
    changed = False
    for label in range(tops.size):
        parent[label] = parent[parent[label]]  # a lower number's root is known by now
        changed |= parent[label] != label
    if not changed:
        return
    for y in range(labels.shape[0]):
        for x in range(labels.shape[1]):
            if labels[y, x] != 0:
                labels[y, x] = parent[labels[y, x]]


@njit(**FAST)
def renumber_kernel(labels, num, min_area, out):
    """Labels without the small ones, numbered by their first pixels."""
    areas, numbers = np.zeros(num + 1, np.int64), np.zeros(num + 1, np.int32)
    height, width = labels.shape
    for y in range(height):
        for x in range(width):
            if labels[y, x] != 0:
                areas[labels[y, x]] += 1
    count = 0
    for y in range(height):
        for x in range(width):
            label = labels[y, x]
            if label == 0:
                out[y, x] = 0
                continue
            if areas[label] >= min_area and numbers[label] == 0:
                count += 1
                numbers[label] = count
            out[y, x] = numbers[label]


@njit(**FAST)
def _is(labels, y, x, label):
    return 0 <= y < labels.shape[0] and 0 <= x < labels.shape[1] and labels[y, x] == label


@njit(**FAST)
def _follow(labels, row, column, seen, points, num_points):
    """Notes the corners of the ring that begins with a pixel's upper side; how many points there are then."""
    east, south = (1, 0, -1, 0), (0, 1, 0, -1)  # headings: east, south, west, north
    # The pixels ahead of a corner, to the left and to the right of each heading.
    left_y, left_x, right_y, right_x = (-1, 0, 0, -1), (0, 0, -1, -1), (0, 0, -1, -1), (0, -1, -1, 0)
    y, x, heading, label = row, column, 0, labels[row, column]
    while heading != 0 or not seen[y, x]:
        if heading == 0:
            seen[y, x] = True
        y, x = y + south[heading], x + east[heading]
        if not _is(labels, y + right_y[heading], x + right_x[heading], label):
            turn = 1
        elif _is(labels, y + left_y[heading], x + left_x[heading], label):
            turn = 3
        else:
            continue
        if num_points < points.shape[0]:
            points[num_points, 0], points[num_points, 1] = x, y
        num_points += 1
        heading = (heading + turn) % 4
    return num_points


@njit(**FAST)
def trace_kernel(labels, points, starts, owners):
    """Follows the sides of the labelled pixels, the object on the right hand; how many rings and corners there are.

    ``points`` become the corners (x, y) where a ring turns, ``starts`` where each ring begins, ``owners`` its label.
    With no room in them, rings and corners are only counted.
    """
    height, width = labels.shape
    seen = np.zeros((height, width), np.bool_)  # whether a pixel's upper side has been walked
    num_rings, num_points = 0, 0
    for y in range(height):
        for x in range(width):
            label = labels[y, x]
            if label == 0 or seen[y, x] or (y and labels[y - 1, x] == label):
                continue
            if num_rings < owners.size:
                starts[num_rings], owners[num_rings] = num_points, label
            num_rings += 1
            num_points = _follow(labels, y, x, seen, points, num_points)
    return num_rings, num_points


@njit(**FAST)
def simplify_kernel(points, starts, tolerance, keep):
    """Marks the points of each ring that Douglas and Peucker keep; its first and the one farthest from it stay."""
    stack = np.empty((points.shape[0] + 2, 2), np.int64)
    for ring in range(starts.size - 1):
        begin, end = starts[ring], starts[ring + 1]
        far, most = begin, -1.0
        for n in range(begin, end):
            away = (points[n, 0] - points[begin, 0]) ** 2.0 + (points[n, 1] - points[begin, 1]) ** 2.0
            if away > most:
                far, most = n, away
        keep[begin] = keep[far] = True
        stack[0, 0], stack[0, 1], stack[1, 0], stack[1, 1] = begin, far, far, end
        height = 2
        while height:
            height -= 1
            a, b = stack[height, 0], stack[height, 1]
            close = begin if b == end else b
            dx, dy = float(points[close, 0] - points[a, 0]), float(points[close, 1] - points[a, 1])
            length = dx * dx + dy * dy
            worst, most = a, tolerance * tolerance
            for n in range(a + 1, b):
                px, py = float(points[n, 0] - points[a, 0]), float(points[n, 1] - points[a, 1])
                along = min(max((px * dx + py * dy) / length, 0.0), 1.0) if length else 0.0
                away = (px - along * dx) ** 2 + (py - along * dy) ** 2
                if away > most:
                    worst, most = n, away
            if worst > a:
                keep[worst] = True
                stack[height, 0], stack[height, 1] = a, worst
                stack[height + 1, 0], stack[height + 1, 1] = worst, b
                height += 2


@njit(**FAST)
def _hull(points, begin, end, hull):
    """The corners of the convex hull of some points, by Andrew's chain; how many they are.

    Of the points in one column only the highest and the lowest can be corners, so nothing has to be put in order.
    """
    if begin == end:
        return 0
    left, right = points[begin, 0], points[begin, 0]
    for n in range(begin, end):
        left, right = min(left, points[n, 0]), max(right, points[n, 0])
    span = right - left + 1
    ends = np.empty((2 * span, 2), np.int64)
    least_y, most_y = np.full(span, FAR, np.int64), np.full(span, -FAR, np.int64)
    for n in range(begin, end):
        column = points[n, 0] - left
        least_y[column] = min(least_y[column], points[n, 1])
        most_y[column] = max(most_y[column], points[n, 1])
    total = 0
    for column in range(span):
        for y in (least_y[column], most_y[column]):
            if abs(y) < FAR and (total == 0 or ends[total - 1, 0] != left + column or ends[total - 1, 1] != y):
                ends[total, 0], ends[total, 1] = left + column, y
                total += 1
    num = 0
    for half in range(2):
        least = num + 1 if half else 2
        for n in range(1 if half else 0, total):
            p = total - 1 - n if half else n
            x, y = ends[p, 0], ends[p, 1]
            while num >= least:
                bx, by, ax, ay = hull[num - 1, 0], hull[num - 1, 1], hull[num - 2, 0], hull[num - 2, 1]
                if (bx - ax) * (y - ay) - (by - ay) * (x - ax) > 0:
                    break
                num -= 1
            hull[num, 0], hull[num, 1] = x, y
            num += 1
    return num - 1  # the first has come round again


@njit(**FAST)
def _callipers(hull, num, out):
    """The longest and the shortest distance between parallels that hold the hull, and that across the longest."""
    longest, shortest, dx, dy = 0.0, np.inf, 1.0, 0.0
    j = 1
    for i in range(num):
        k = (i + 1) % num
        ex, ey = hull[k, 0] - hull[i, 0], hull[k, 1] - hull[i, 1]
        while True:
            for corner in (i, k):
                ax, ay = hull[j, 0] - hull[corner, 0], hull[j, 1] - hull[corner, 1]
                if ax * ax + ay * ay > longest:
                    longest, dx, dy = float(ax * ax + ay * ay), float(ax), float(ay)
            after = (j + 1) % num
            if ex * (hull[after, 1] - hull[j, 1]) - ey * (hull[after, 0] - hull[j, 0]) <= 0:
                break
            j = after
        away = ex * (hull[j, 1] - hull[i, 1]) - ey * (hull[j, 0] - hull[i, 0])
        shortest = min(shortest, away / np.sqrt(float(ex * ex + ey * ey)))
        # An edge across may be parallel: its far end is as far away and may be the farther corner.
        after = (j + 1) % num
        ax, ay = hull[after, 0] - hull[i, 0], hull[after, 1] - hull[i, 1]
        if ax * ax + ay * ay > longest:
            longest, dx, dy = float(ax * ax + ay * ay), float(ax), float(ay)
    longest = np.sqrt(longest)
    low, high = np.inf, -np.inf
    for i in range(num):
        across = (hull[i, 1] * dx - hull[i, 0] * dy) / longest
        low, high = min(low, across), max(high, across)
    out[0], out[1], out[2], out[3] = longest, shortest, high - low, np.arctan2(dy, dx)


@njit(**FAST)
def hulls_kernel(points, starts, out):
    """For each group of points: Feret's diameters (max, min, across the max), the max's angle and the hull's area."""
    longest = 0
    for n in range(starts.size - 1):
        longest = max(longest, starts[n + 1] - starts[n])
    hull = np.empty((2 * longest + 2, 2), np.int64)
    for n in range(starts.size - 1):
        num = _hull(points, starts[n], starts[n + 1], hull)
        _callipers(hull, num, out[n])
        twice = 0
        for i in range(num):
            k = (i + 1) % num
            twice += hull[i, 0] * hull[k, 1] - hull[k, 0] * hull[i, 1]
        out[n, 4] = twice / 2


@njit(**FAST)
def _next(line, x):
    """Where the next run of a label begins in a row, from a place on; of nothing, eight places are passed at once."""
    while x < line.size and line[x] == 0:
        eight = x + 8 <= line.size
        if eight:
            eight = not (
                line[x + 1] | line[x + 2] | line[x + 3] | line[x + 4] | line[x + 5] | line[x + 6] | line[x + 7]
            )
        x += 8 if eight else 1
    return x


@njit(**FAST)
def _after(line, x):
    """The place after the run of a label that begins at a place of a row."""
    label = line[x]
    while x < line.size and line[x] == label:
        x += 1
    return x


@njit(**FAST)
def _without(line, begin, end, label):
    """How many of some places in a line, which may lie beyond its ends, do not hold the label."""
    found = end - begin
    for x in range(max(begin, 0), min(end, line.size)):
        found -= line[x] == label
    return found


@njit(**FAST)
def sums_kernel(labels, values, sums, spans):
    """Per label, over its runs: counts and moments into ``sums``, least and greatest coordinates into ``spans``.

    Sums: pixels, x, y, xx, yy, xy, value, then the runs along rows, columns and the two diagonals. Spans: x, y, x + y
    and x - y, each least and greatest.
    """
    height, width = labels.shape
    for y in range(height):
        first = _next(labels[y], 0)
        while first < width:
            label, after = labels[y, first], _after(labels[y], first)
            last, s, t = after - 1, sums[label], spans[label]
            num, x = last - first + 1, (last - first + 1) * (first + last) // 2
            s[0] += num
            s[1] += x
            s[2] += y * num
            s[3] += (last * (last + 1) * (2 * last + 1) - (first - 1) * first * (2 * first - 1)) // 6
            s[4] += y * y * num
            s[5] += x * y
            for at in range(first, after):
                s[6] += values[y, at]
            s[7] += 1
            for n in range(3):
                side = (0, -1, 1)[n]
                s[8 + n] += _without(labels[y - 1], first + side, last + side + 1, label) if y else num
            t[0], t[1] = min(t[0], first), max(t[1], last)
            t[2], t[3] = min(t[2], y), max(t[3], y)
            t[4], t[5] = min(t[4], first + y), max(t[5], last + y)
            t[6], t[7] = min(t[6], first - y), max(t[7], last - y)
            first = _next(labels[y], after)
