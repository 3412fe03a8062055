"""The outlines of numbered objects: outer rings with their holes, exact or simplified, and back to pixels."""

from __future__ import annotations

import itertools

import numpy as np

from hotlap.data.outline import Outline, Polygon
from hotlap.kernels.instances.op import holders, simplify, tangled, trace
from hotlap.kernels.instances.reference import Rings, ring_areas


def outlines(labels: np.ndarray, *, tolerance: float = 0.0, rings: Rings | None = None) -> list[Outline]:  # [H, W]
    """The outlines of all objects, by label; with tolerance 0 the very sides of the pixels.

    A tolerance, in pixels, is how far a left-out corner may lie from the line (Douglas and Peucker). A ring that
    would be left with fewer than three corners stays as it was, and so do all of an object whose rings would meet. No
    ring meets itself: what an object all but encloses, up to a corner, is a hole of its outline. ``rings`` are what
    ``trace`` gives, where it is known.
    """
    traced = trace(labels) if rings is None else rings
    points, starts, owners = _untied(traced)
    areas = ring_areas(points, starts).tolist()
    keep = _kept(points, starts, owners, tolerance)
    kept, ends = points[keep].astype(np.float64), np.append(0, np.cumsum(keep))[starts].tolist()
    corners = [kept[a:b] for a, b in itertools.pairwise(ends)]
    members: dict[int, list[int]] = {}
    for ring, owner in enumerate(owners.tolist()):
        members.setdefault(owner, []).append(ring)
    inside = holders(labels, traced).tolist()
    return [
        Outline(label, _parts(numbers, corners, areas, points, starts), inside[label - 1])
        for label, numbers in sorted(members.items())
    ]


def _untied(rings: Rings) -> Rings:
    """The same rings, those that come by a corner twice made into two there."""
    points, starts, owners = rings
    ring = np.repeat(np.arange(len(owners)), np.diff(starts))
    across, down = points.max(0, initial=0) + 1
    place = np.sort((ring * down + points[:, 1]) * across + points[:, 0])
    tied = set((place[1:][place[1:] == place[:-1]] // (across * down)).tolist())
    if not tied:
        return rings
    pieces: list[np.ndarray] = []
    whose: list[int] = []
    for number, (begin, end) in enumerate(itertools.pairwise(starts.tolist())):
        loops = _loops(points[begin:end]) if number in tied else [points[begin:end]]
        pieces += loops
        whose += [int(owners[number])] * len(loops)
    ends = np.cumsum([0, *map(len, pieces)])
    return np.concatenate(pieces), ends, np.array(whose, owners.dtype)


def _loops(ring: np.ndarray) -> list[np.ndarray]:  # [P, 2]
    """A ring as loops that each come by a corner once."""
    loops: list[np.ndarray] = []
    way: dict[tuple[int, int], None] = {}  # in the order of going; looked up, for a ring may have a million corners
    for corner in map(tuple, ring.tolist()):
        if corner in way:
            back = list(iter(lambda: way.popitem()[0], corner))
            loops.append(np.array([corner, *reversed(back)], ring.dtype))
        way[corner] = None
    return [*loops, np.array(list(way), ring.dtype)]


def _kept(points: np.ndarray, starts: np.ndarray, owners: np.ndarray, tolerance: float) -> np.ndarray:  # [P] bool
    if tolerance <= 0 or not len(owners):
        return np.ones(len(points), bool)
    keep = simplify(points, starts, tolerance)
    few = np.add.reduceat(keep.astype(np.int64), starts[:-1]) < 3
    keep |= np.repeat(few, np.diff(starts))
    left = points[keep], np.append(0, np.cumsum(keep))[starts], owners
    holes = ring_areas(points, starts) < 0
    turned = owners[(ring_areas(*left[:2]) < 0) != holes]
    spoilt = np.isin(owners, np.concatenate([tangled(left, holes), turned]))
    return keep | np.repeat(spoilt, np.diff(starts))


def _parts(
    numbers: list[int], rings: list[np.ndarray], areas: list[float], points: np.ndarray, starts: np.ndarray
) -> tuple[Polygon, ...]:
    """Polygons of one object: each hole belongs to the smallest outer ring around it."""
    outers = [n for n in numbers if areas[n] > 0]
    holes: dict[int, list[np.ndarray]] = {n: [] for n in outers}
    for n in numbers:
        if areas[n] > 0:
            continue
        home = outers[0]
        if len(outers) > 1:
            # The middle of the side after the hole's last corner, and a little to the object's side of it.
            a, b = points[starts[n + 1] - 1], points[starts[n]]
            along = np.sign(b - a)
            spot = a + 0.5 * along + 0.25 * np.array([-along[1], along[0]])
            around = [m for m in outers if _contains(points[starts[m] : starts[m + 1]], spot)]
            home = min(around, key=lambda m: areas[m])
        holes[home].append(rings[n])
    return tuple(Polygon(rings[n], tuple(holes[n])) for n in outers)


def _contains(ring: np.ndarray, spot: np.ndarray) -> bool:
    """Whether a point lies within a ring, by the sides that a ray to the right crosses."""
    x, y = ring[:, 0], ring[:, 1]
    to_x, to_y = np.roll(x, -1), np.roll(y, -1)
    crosses = (y > spot[1]) != (to_y > spot[1])
    height = np.where(to_y == y, 1, to_y - y)
    at = x + (spot[1] - y) * (to_x - x) / height
    return bool(np.count_nonzero(crosses & (at > spot[0])) % 2)


def filled(ring: np.ndarray, shape: tuple[int, int], corner: tuple[int, int] = (0, 0)) -> np.ndarray:  # [H, W] bool
    """The pixels of a picture of this shape, whose upper left corner is ``corner``, with centres within a ring."""
    height, width = shape
    flips = np.zeros((height, width + 1), bool)
    x, y = ring[:, 0] - corner[0], ring[:, 1] - corner[1]
    to_x, to_y = np.roll(x, -1), np.roll(y, -1)
    # Rows whose centres a side crosses: none of a level one.
    first = np.maximum(np.ceil(np.minimum(y, to_y) - 0.5), 0).astype(np.int64)
    num = np.maximum(np.minimum(np.ceil(np.maximum(y, to_y) - 0.5), height).astype(np.int64) - first, 0)
    side = np.repeat(np.arange(len(x)), num)
    rows = first[side] + np.arange(len(side)) - np.repeat(np.cumsum(num) - num, num)
    at = x[side] + (rows + 0.5 - y[side]) * (to_x - x)[side] / (to_y - y)[side]
    columns = np.clip(np.ceil(at - 0.5).astype(np.int64), 0, width)
    np.logical_xor.at(flips, (rows, columns), True)
    return np.logical_xor.accumulate(flips, axis=1)[:, :width]


def draw_outlines(found: list[Outline], shape: tuple[int, int]) -> np.ndarray:  # [H, W] int32
    """The labels that outlines enclose; those that lie inside others are drawn over them."""
    labels = np.zeros(shape, np.int32)
    for outline in sorted(found, key=lambda outline: -max((abs(_area(p.outer)) for p in outline.parts), default=0)):
        for part in outline.parts:
            mask, (left, top) = covered(part, shape)
            labels[top : top + mask.shape[0], left : left + mask.shape[1]][mask] = outline.label
    return labels


def covered(part: Polygon, shape: tuple[int, int]) -> tuple[np.ndarray, tuple[int, int]]:  # [h, w] bool
    """The pixels of a picture of this shape that a polygon encloses, in its box, and the box's left and top."""
    size = np.array([shape[1], shape[0]])
    low = np.clip(np.floor(part.outer.min(0)), 0, size).astype(int)
    high = np.clip(np.ceil(part.outer.max(0)), 0, size).astype(int)
    corner, box = (int(low[0]), int(low[1])), (int(high[1] - low[1]), int(high[0] - low[0]))
    mask = filled(part.outer, box, corner)
    for hole in part.holes:
        mask &= ~filled(hole, box, corner)
    return mask, corner


def _area(ring: np.ndarray) -> float:
    x, y = ring[:, 0], ring[:, 1]
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2
