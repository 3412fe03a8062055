"""Instances and their outlines on the CPU, compiled by numba; several images may be worked on in several threads."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from hotlap.kernels.instances.reference import Graded, Rings, following, ring_areas

SIDES = 1 << 15
"""Sides where labels meet that there is room for at first; where there are more, they are gone through again."""


CORNERS = 1 << 16
"""Corners of rings that there is room for at first; where there are more, they are gone through again."""
FAR = np.iinfo(np.int32).max
"""After any label."""
RUNS = 1 << 16
"""Runs of a mask that there is room for at first; where there are more, they are gone through again."""
_AWAY = np.exp(-0.5 * np.arange(-4, 5) ** 2)
WEIGHTS = (_AWAY / _AWAY.sum())[4:]
"""A Gaussian of one pixel: its middle, and 1 to 4 pixels away."""


def why_not() -> str:
    """Why this implementation cannot run here; '' if it can."""
    return "" if find_spec("numba") is not None else "numba is not installed"


def regions(mask: np.ndarray) -> tuple[np.ndarray, int]:
    """Numbered regions; ``regions_ref`` says how."""
    from hotlap.kernels.instances.cpu_regions import fill_kernel

    labels = np.zeros(mask.shape, np.int32)
    runs, numbers, num = _numbered_runs(mask)
    fill_kernel(runs, numbers, labels)
    return labels, num


def _numbered_runs(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:  # [H, W] bool -> [R, 3], [R] int32
    """The runs along a mask's rows, which region each is of, and how many regions there are."""
    from hotlap.kernels.instances.cpu_regions import number_kernel, runs_kernel

    mask = np.ascontiguousarray(mask)
    eights = mask.ravel()[: mask.size // 8 * 8].view(np.uint64)
    runs = np.empty((RUNS, 3), np.int32)
    count = runs_kernel(mask, eights, runs)
    if count > RUNS:
        runs = np.empty((count, 3), np.int32)
        runs_kernel(mask, eights, runs)
    numbers = np.empty(count, np.int32)
    return runs[:count], numbers, int(number_kernel(runs[:count], numbers))


def watershed(levels: np.ndarray, seeds: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Grown seeds; ``watershed_ref`` says how."""
    from hotlap.kernels.instances.cpu_regions import watershed_kernel

    seeds, labels = np.ascontiguousarray(seeds), np.zeros(seeds.shape, np.int32)
    watershed_kernel(np.ascontiguousarray(levels), seeds, *_numbered_runs(mask | (seeds != 0)), labels)
    return labels


def grade(foreground: np.ndarray, heights: np.ndarray, threshold: float, seed_threshold: float) -> Graded:
    """Mask, cores and levels; ``grade_ref`` says how."""
    from hotlap.kernels.instances.cpu_kernels import grade_kernel

    shape = foreground.shape
    made = np.empty(shape, np.bool_), np.empty(shape, np.bool_), np.empty(shape, np.uint8)
    given = [np.ascontiguousarray(picture, np.float32) for picture in (foreground, heights)]
    grade_kernel(*given, np.float32(threshold), np.float32(seed_threshold), *made)
    return made


def depth(mask: np.ndarray) -> np.ndarray:
    """Shares of the depth around; ``depth_ref`` says how."""
    from hotlap.kernels.instances import cpu_depth as kernels

    mask = np.ascontiguousarray(mask)
    runs, numbers, num = _numbered_runs(mask)
    shares = np.zeros(mask.shape, np.float32)
    if not num:
        return shares
    smooth, around, tops = np.zeros_like(shares), np.empty_like(shares), np.zeros(num, np.float32)
    kernels.smooth_kernel(_distances(mask, runs), mask.any(1), WEIGHTS, smooth)
    kernels.tallest_kernel(smooth, runs, numbers, tops)
    kernels.around_kernel(smooth, int(np.median(tops)), around)
    kernels.share_kernel(smooth, around, runs, shares)
    return shares


def _distances(mask: np.ndarray, runs: np.ndarray) -> np.ndarray:  # [H, W] float32
    """How far the nearest background is; where there is none, how far the outside."""
    from hotlap.kernels.instances.cpu_depth import distance_kernel

    if mask.all():
        mask = np.pad(mask, 1)
        return np.ascontiguousarray(_distances(mask, _numbered_runs(mask)[0])[1:-1, 1:-1])
    away = np.zeros(mask.shape, np.float32)
    distance_kernel(runs, away)
    return away


def merge(labels: np.ndarray, heights: np.ndarray, share: float) -> np.ndarray:
    """Labels of which some have become one; ``merge_ref`` says which."""
    from hotlap.kernels.instances.cpu_kernels import merge_kernel, sides_kernel

    labels, heights = np.array(labels, np.int32, order="C"), np.ascontiguousarray(heights, np.float32)
    tops = np.zeros(labels.max(initial=0) + 1, np.float32)
    sides, levels = np.empty((SIDES, 2), np.int32), np.empty(SIDES, np.float32)
    num = sides_kernel(labels, heights, tops, sides, levels)
    if num > SIDES:
        sides, levels = np.empty((num, 2), np.int32), np.empty(num, np.float32)
        sides_kernel(labels, heights, tops, sides, levels)
    sides, levels = sides[:num], levels[:num]
    order = np.argsort(-levels, kind="stable")
    merge_kernel(labels, tops, sides, levels, order, np.float32(share))
    return labels


def renumber(labels: np.ndarray, min_area: int) -> np.ndarray:
    """Labels without gaps; ``renumber_ref`` says which."""
    from hotlap.kernels.instances.cpu_kernels import renumber_kernel

    labels = np.ascontiguousarray(labels, np.int32)
    made = np.empty_like(labels)
    renumber_kernel(labels, int(labels.max(initial=0)), min_area, made)
    return made


def trace(labels: np.ndarray) -> Rings:
    """Rings of corners; ``trace_ref`` says which."""
    from hotlap.kernels.instances.cpu_kernels import trace_kernel

    labels = np.ascontiguousarray(labels, np.int32)
    num_points, num_rings = CORNERS, CORNERS // 4  # a ring has four or more
    while True:
        points, starts = np.empty((num_points, 2), np.int64), np.empty(num_rings + 1, np.int64)
        owners, room = np.empty(num_rings, np.int32), num_points
        num_rings, num_points = trace_kernel(labels, points, starts, owners)
        if num_points <= room:
            break
    starts[num_rings] = num_points
    return points[:num_points].copy(), starts[: num_rings + 1].copy(), owners[:num_rings].copy()


def simplify(points: np.ndarray, starts: np.ndarray, tolerance: float) -> np.ndarray:
    """Which points stay; ``simplify_ref`` says which."""
    from hotlap.kernels.instances.cpu_kernels import simplify_kernel

    keep = np.zeros(len(points), np.bool_)
    simplify_kernel(points, starts, float(tolerance), keep)
    return keep


def filled(rings: Rings, which: np.ndarray) -> np.ndarray:
    """Pixels and runs of labels without holes; ``filled_ref`` says how."""
    from hotlap.kernels.instances.cpu_holes import filled_kernel

    points, starts, owners = rings
    outer = np.flatnonzero(ring_areas(points, starts) > 0)
    outer = outer[np.argsort(owners[outer], kind="stable")]
    outer = outer[np.isin(owners[outer], which)]
    rows = np.zeros((len(which), 5))
    filled_kernel(points, starts, outer, np.searchsorted(owners[outer], np.append(which, FAR)), rows)
    return rows


def holders(labels: np.ndarray, rings: Rings) -> np.ndarray:
    """Whose hole each label lies in; ``holders_ref`` says which counts."""
    from hotlap.kernels.instances.cpu_holes import holders_kernel

    points, starts, owners = rings
    found = np.zeros(owners.max(initial=0), np.int32)
    holders_kernel(np.ascontiguousarray(labels, np.int32), points, starts, owners, ring_areas(points, starts), found)
    return found


def tangled(rings: Rings, holes: np.ndarray) -> np.ndarray:
    """Labels whose rings bound no area; ``tangled_ref`` says which."""
    from hotlap.kernels.instances.cpu_tangles import tangled_kernel

    points, starts, owners = rings
    ring = np.repeat(np.arange(len(owners)), np.diff(starts))
    order = np.argsort(owners[ring], kind="stable")
    labels = np.unique(owners)
    begins = np.searchsorted(owners[ring[order]], np.append(labels, FAR))
    found = np.zeros(len(labels), np.bool_)
    tangled_kernel(points, starts, following(points, starts), ring, holes, order, begins, found)
    return labels[found]


def hulls(points: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Sizes of convex hulls; ``hulls_ref`` says which."""
    from hotlap.kernels.instances.cpu_kernels import hulls_kernel

    rows = np.empty((len(starts) - 1, 5))
    hulls_kernel(points, starts, rows)
    return rows


def sums(labels: np.ndarray, values: np.ndarray, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Sums and spans of each label; ``sums_ref`` says which."""
    from hotlap.kernels.instances.cpu_kernels import sums_kernel

    totals = np.zeros((num + 1, 11))
    spans = np.empty((num + 1, 8), np.int64)
    spans[:, 0::2], spans[:, 1::2] = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    sums_kernel(np.ascontiguousarray(labels, np.int32), np.ascontiguousarray(values, np.float32), totals, spans)
    return totals[1:], spans[1:]
