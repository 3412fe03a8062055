"""What the compiled functions must give, written plainly in numpy and Python."""

from __future__ import annotations

import heapq
import itertools

import numpy as np
from scipy import ndimage

Rings = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Corners [P, 2] (x, y), where each ring starts [R + 1], and whose it is [R]."""

Graded = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Mask and cores [H, W] bool, and levels [H, W] uint8."""


def grade_ref(foreground: np.ndarray, heights: np.ndarray, threshold: float, seed_threshold: float) -> Graded:
    """Where objects are, where they start, and levels that are the lower the higher a pixel is."""
    foreground, heights = foreground.astype(np.float32), heights.astype(np.float32)
    mask = foreground >= np.float32(threshold)
    levels = 255 - (np.clip(heights, 0, 1).astype(np.float64) * 255 + 0.5).astype(np.int64)
    return mask, mask & (heights >= np.float32(seed_threshold)), levels.astype(np.uint8)


def depth_ref(mask: np.ndarray) -> np.ndarray:  # [H, W] bool -> [H, W] float32
    """How deep each pixel of the mask lies, from 0 to 1 on the top of each hill; 0 elsewhere.

    The distance to the nearest background, blurred by a pixel, is taken as a share of the greatest around: as far
    around as the middle one of the regions is deep. Its eighth power leaves only what is within a tenth of that above
    one half. In a picture without background the distance is that to beyond its edges.
    """
    if not mask.any():
        return np.zeros(mask.shape, np.float32)
    away = ndimage.distance_transform_edt(np.pad(mask, 1) if mask.all() else mask)
    away = away[1:-1, 1:-1] if mask.all() else away
    depth = ndimage.gaussian_filter(away.astype(np.float32), 1.0)
    labels, num = regions_ref(mask)
    tallest = ndimage.maximum(depth, labels, np.arange(1, num + 1))
    around = ndimage.maximum_filter(depth, size=2 * int(np.median(tallest)) + 1)
    share = np.divide(depth, around, out=np.zeros_like(depth), where=mask).astype(np.float64)
    squared = share * share
    fourth = squared * squared
    return np.asarray(fourth * fourth, np.float32)


def merge_ref(labels: np.ndarray, heights: np.ndarray, share: float) -> np.ndarray:  # [H, W] each
    """Labels that meet become one, from the highest pass down, where it reaches a share of the lower one's top.

    A pass is the higher the higher the lower of the two pixels on a side where labels meet. What has become one has
    the higher of both tops and the lower of both numbers.
    """
    heights = heights.astype(np.float32)
    passes = []
    for here, there in ((np.s_[:, :-1], np.s_[:, 1:]), (np.s_[:-1], np.s_[1:])):
        met = (labels[here] != labels[there]) & (labels[here] != 0) & (labels[there] != 0)
        level = np.minimum(heights[here], heights[there])[met]
        passes += list(zip(level.tolist(), labels[here][met].tolist(), labels[there][met].tolist(), strict=True))
    names = {label: label for label in np.unique(labels).tolist()}
    tops = {label: heights[labels == label].max() for label in names}
    for level, one, other in sorted(passes, key=lambda item: -item[0]):
        a, b = sorted((names[one], names[other]))
        if a != b and np.float32(level) >= np.float32(share) * min(tops[a], tops[b]):
            tops[a] = max(tops[a], tops[b])
            names = {label: a if name == b else name for label, name in names.items()}
    return np.array([[names[label] for label in row] for row in labels.tolist()], np.int32).reshape(labels.shape)


def renumber_ref(labels: np.ndarray, min_area: int) -> np.ndarray:  # [H, W] int32
    """The labels that have at least ``min_area`` pixels, numbered from 1 by their first ones."""
    values, first, counts = np.unique(labels, return_index=True, return_counts=True)
    kept = [label for _, label, n in sorted(zip(first, values, counts, strict=True)) if label and n >= min_area]
    made = np.zeros(labels.shape, np.int32)
    for number, label in enumerate(kept, start=1):
        made[labels == label] = number
    return made


def regions_ref(mask: np.ndarray) -> tuple[np.ndarray, int]:  # [H, W] bool
    """The 4-connected regions, numbered in the order of their first pixels, and how many there are."""
    labels, num = ndimage.label(mask)
    return labels.astype(np.int32), int(num)


def watershed_ref(levels: np.ndarray, seeds: np.ndarray, mask: np.ndarray) -> np.ndarray:  # [H, W] each
    """Seeds grown over the mask: always the pixel of the lowest level next, of equal ones the first to be reached."""
    labels = seeds.copy()
    height, width = labels.shape
    waiting = [(int(levels[y, x]), n, y, x) for n, (y, x) in enumerate(np.argwhere(seeds != 0).tolist())]
    heapq.heapify(waiting)
    order = len(waiting)
    while waiting:
        _, _, y, x = heapq.heappop(waiting)
        for to_y, to_x in ((y - 1, x), (y, x - 1), (y, x + 1), (y + 1, x)):
            if 0 <= to_y < height and 0 <= to_x < width and mask[to_y, to_x] and labels[to_y, to_x] == 0:
                labels[to_y, to_x] = labels[y, x]
                heapq.heappush(waiting, (int(levels[to_y, to_x]), order, to_y, to_x))
                order += 1
    return labels


def trace_ref(labels: np.ndarray) -> Rings:  # [H, W] int32
    """The rings around each label's 4-connected parts and their holes, the object on the right of each step."""
    padded = np.pad(labels, 1)
    steps: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for y, x in np.argwhere(padded != 0).tolist():
        label = int(padded[y, x])
        if padded[y - 1, x] != label:
            steps.setdefault((label, x, y), []).append((x + 1, y))
        if padded[y, x + 1] != label:
            steps.setdefault((label, x + 1, y), []).append((x + 1, y + 1))
        if padded[y + 1, x] != label:
            steps.setdefault((label, x + 1, y + 1), []).append((x, y + 1))
        if padded[y, x - 1] != label:
            steps.setdefault((label, x, y + 1), []).append((x, y))
    points: list[tuple[int, int]] = []
    starts, owners = [0], []
    for y, x in np.argwhere((padded[1:] != 0) & (padded[1:] != padded[:-1])).tolist():
        label = int(padded[y + 1, x])
        if (x + 1, y + 1) in steps.get((label, x, y + 1), []):
            points += _corners(_walk(steps, label, (x, y + 1), (x + 1, y + 1)))
            starts.append(len(points))
            owners.append(label)
    corners = np.array(points, np.int64).reshape(-1, 2) - 1
    return corners, np.array(starts, np.int64), np.array(owners, np.int32)


def _walk(
    steps: dict[tuple[int, int, int], list[tuple[int, int]]], label: int, at: tuple[int, int], to: tuple[int, int]
) -> list[tuple[int, int]]:
    """The corners of one ring, every pixel's; where two ways lead on, the one to the right is taken."""
    steps[label, at[0], at[1]].remove(to)
    ring, first = [at], at
    while to != first or _turns_right(steps, label, at, to):
        ring.append(to)
        ways = steps[label, to[0], to[1]]
        dx, dy = to[0] - at[0], to[1] - at[1]
        way = next((w for w in ways if (w[0] - to[0], w[1] - to[1]) == (-dy, dx)), ways[0])
        ways.remove(way)
        at, to = to, way
    return ring


def _turns_right(
    steps: dict[tuple[int, int, int], list[tuple[int, int]]], label: int, at: tuple[int, int], to: tuple[int, int]
) -> bool:
    """Whether a ring that is back at its first corner goes on, because two of the label's pixels touch there."""
    dx, dy = to[0] - at[0], to[1] - at[1]
    return (to[0] - dy, to[1] + dx) in steps[label, to[0], to[1]]


def _corners(ring: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The points after the first at which a ring turns, and the first last if it turns there."""
    turned = []
    for n in range(1, len(ring) + 1):
        before, here, after = ring[n - 1], ring[n % len(ring)], ring[(n + 1) % len(ring)]
        if (here[0] - before[0], here[1] - before[1]) != (after[0] - here[0], after[1] - here[1]):
            turned.append(here)
    return turned


def ring_areas(points: np.ndarray, starts: np.ndarray) -> np.ndarray:  # [R] float64
    """Each ring's area by the shoelace formula; below 0 for a hole."""
    if len(starts) < 2:
        return np.zeros(0)
    after = following(points, starts)
    cross = points[:, 0] * points[after, 1] - points[:, 1] * points[after, 0]
    return np.add.reduceat(cross, starts[:-1]) / 2


def following(points: np.ndarray, starts: np.ndarray) -> np.ndarray:  # [P] int64
    """The number of the point after each one in its ring."""
    after = np.arange(1, len(points) + 1)
    after[starts[1:] - 1] = starts[:-1]
    return after


def _enclosed(ring: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:  # [P, 2] -> [H, W] bool
    """The pixels of a picture that a ring goes around: those with an odd number of its upright sides on their left."""
    sides = np.zeros((shape[0], shape[1] + 1), np.int64)
    for (x, y), (_, to_y) in zip(ring.tolist(), np.roll(ring, -1, axis=0).tolist(), strict=True):
        sides[min(y, to_y) : max(y, to_y), x] += 1
    return sides.cumsum(axis=1)[:, :-1] % 2 == 1


def filled_ref(rings: Rings, which: np.ndarray) -> np.ndarray:  # [L] -> [L, 5] float64
    """Pixels of each label with its holes filled, and their runs along rows, columns and the two diagonals."""
    points, starts, owners = rings
    shape = tuple(points.max(0, initial=0)[::-1])
    outer, rows = ring_areas(points, starts) > 0, np.empty((len(which), 5))
    for n, label in enumerate(which.tolist()):
        whole = np.zeros(shape, np.int32)
        for ring in np.flatnonzero(outer & (owners == label)).tolist():
            whole[_enclosed(points[starts[ring] : starts[ring + 1]], shape)] = 1
        totals, _ = sums_ref(whole, np.zeros(shape), 1)
        rows[n] = totals[0, [0, 7, 8, 9, 10]]
    return rows


def holders_ref(labels: np.ndarray, rings: Rings) -> np.ndarray:  # [H, W] -> [num] int32
    """Whose hole each label lies in, 0 if in none; of several holes around it, the smallest counts."""
    points, starts, owners = rings
    found = np.zeros(owners.max(initial=0), np.int32)
    least = np.full(len(found), np.inf)
    for ring, area in enumerate(ring_areas(points, starts).tolist()):
        if area > 0:
            continue
        within = np.unique(labels[_enclosed(points[starts[ring] : starts[ring + 1]], labels.shape)])
        for label in within[(within > 0) & (within != owners[ring])].tolist():
            if -area < least[label - 1]:
                least[label - 1], found[label - 1] = -area, owners[ring]
    return found


def hulls_ref(points: np.ndarray, starts: np.ndarray) -> np.ndarray:  # [P, 2], [G + 1] -> [G, 5]
    """Feret's diameters of each group (max, min, across the max), the max's angle and the hull's area."""
    from scipy.spatial import ConvexHull

    rows = np.empty((len(starts) - 1, 5))
    for n, (begin, end) in enumerate(itertools.pairwise(starts)):
        group = points[begin:end].astype(float)
        hull = ConvexHull(group)
        corners = group[hull.vertices]
        apart = corners[:, None] - corners[None]
        lengths = np.hypot(apart[..., 0], apart[..., 1])
        dx, dy = apart[np.unravel_index(lengths.argmax(), lengths.shape)]
        across = (corners[:, 1] * dx - corners[:, 0] * dy) / lengths.max()
        edges = np.roll(corners, -1, 0) - corners
        sides = edges / np.hypot(edges[:, 0], edges[:, 1])[:, None]
        widths = np.ptp(corners[:, 1] * sides[:, :1] - corners[:, 0] * sides[:, 1:], axis=1)
        rows[n] = lengths.max(), widths.min(), np.ptp(across), np.arctan2(dy, dx), hull.volume
    return rows


def simplify_ref(points: np.ndarray, starts: np.ndarray, tolerance: float) -> np.ndarray:  # [P, 2], [R + 1] -> [P] bool
    """Which points of each ring Douglas and Peucker keep; its first and the one farthest from that stay."""
    keep = np.zeros(len(points), bool)
    for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        if begin == end:
            continue
        ring = np.vstack([points[begin:end], points[begin]]).astype(float)
        far = int(((ring[:-1] - ring[0]) ** 2).sum(1).argmax())
        keep[[begin, begin + far]] = True
        waiting = [(0, far), (far, end - begin)]
        while waiting:
            a, b = waiting.pop()
            if b - a < 2:
                continue
            way, inner = ring[b] - ring[a], ring[a + 1 : b] - ring[a]
            length = float(way @ way)
            along = np.clip(inner @ way / length, 0, 1) if length else np.zeros(len(inner))
            away = ((inner - along[:, None] * way) ** 2).sum(1)
            if away.max() > tolerance**2:
                worst = a + 1 + int(away.argmax())
                keep[begin + worst] = True
                waiting += [(a, worst), (worst, b)]
    return keep


def tangled_ref(rings: Rings, holes: np.ndarray) -> np.ndarray:  # [R] bool -> [L] int32
    """The labels whose rings bound no area: one meets itself or another, or a hole does not lie within."""
    points, starts, owners = rings
    after, ring = following(points, starts), np.repeat(np.arange(len(owners)), np.diff(starts))
    found = []
    for label in np.unique(owners).tolist():
        mine = np.flatnonzero(owners[ring] == label)
        a, b = points[mine], points[after[mine]]
        first = points[starts[np.flatnonzero(owners == label)]]
        if (
            _meet(a, b, mine, after[mine])
            or (
                _within(first, a, b, np.flatnonzero(owners == label)[:, None] != ring[mine]) != holes[owners == label]
            ).any()
        ):
            found.append(label)
    return np.array(found, np.int32)


def _meet(a: np.ndarray, b: np.ndarray, number: np.ndarray, after: np.ndarray) -> bool:  # [S, 2], [S] each
    """Whether two sides that do not follow each other share a point, or one goes back along the one before."""
    way = b - a

    def side(spots: np.ndarray) -> np.ndarray:  # [S, 2] -> [S, S]
        apart = spots[None] - a[:, None]
        return np.sign(way[:, None, 0] * apart[..., 1] - way[:, None, 1] * apart[..., 0])

    low, high = np.minimum(a, b), np.maximum(a, b)
    close = ((low[:, None] <= high[None]) & (low[None] <= high[:, None])).all(2)
    straddles = side(a) * side(b) <= 0
    apart = (number[:, None] != number) & (after[:, None] != number) & (number[:, None] != after)
    back = (after[:, None] == number) & (side(b) == 0) & ((way[:, None] * way[None]).sum(2) < 0)
    return bool((close & straddles & straddles.T & apart).any() or back.any())


def _within(spots: np.ndarray, a: np.ndarray, b: np.ndarray, counts: np.ndarray) -> np.ndarray:  # [R, 2], [R, S] -> [R]
    """Whether an odd number of the sides that count lies to the right of each spot."""
    x, y = spots[:, 0, None], spots[:, 1, None]
    spans = (a[:, 1] > y) != (b[:, 1] > y)
    cross = (b[:, 0] - a[:, 0]) * (y - a[:, 1]) - (b[:, 1] - a[:, 1]) * (x - a[:, 0])
    right = (cross > 0) == (b[:, 1] > a[:, 1])
    return np.asarray((spans & right & counts).sum(1) % 2 == 1)


def sums_ref(labels: np.ndarray, values: np.ndarray, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts and moments [num, 11] of labels 1 to ``num``, and the least and greatest coordinates [num, 8].

    Sums: pixels, x, y, xx, yy, xy, value, then the runs along rows, columns and the two diagonals. Spans: x, y, x + y
    and x - y, each least and greatest.
    """
    totals, spans = np.zeros((num, 11)), np.empty((num, 8), np.int64)
    spans[:, 0::2], spans[:, 1::2] = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    padded = np.pad(labels, 1)
    before = [padded[1:-1, :-2], padded[:-2, 1:-1], padded[:-2, :-2], padded[:-2, 2:]]
    for label in range(1, num + 1):
        y, x = np.nonzero(labels == label)
        if not len(x):
            continue
        runs = [int((other[y, x] != label).sum()) for other in before]
        moments = [len(x), x.sum(), y.sum(), (x * x).sum(), (y * y).sum(), (x * y).sum()]
        totals[label - 1] = [*moments, values[y, x].astype(float).sum(), *runs]
        spans[label - 1] = [edge for line in (x, y, x + y, x - y) for edge in (line.min(), line.max())]
    return totals, spans
