"""Instances and their outlines on the CPU, compiled by numba; several images may be worked on in several threads."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from hotlap.kernels.instances.reference import Graded, Rings

SIDES = 1 << 15
"""Sides where labels meet that there is room for at first; where there are more, they are gone through again."""


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

    labels, mask = np.array(seeds, np.int32, order="C"), np.ascontiguousarray(mask)
    watershed_kernel(np.ascontiguousarray(levels), mask, *_numbered_runs(mask | (labels != 0)), labels)
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
    sides, levels = np.empty((SIDES, 2), np.int32), np.empty(SIDES, np.float32)
    num = sides_kernel(labels, heights, sides, levels)
    if num > SIDES:
        sides, levels = np.empty((num, 2), np.int32), np.empty(num, np.float32)
        sides_kernel(labels, heights, sides, levels)
    sides, levels = sides[:num], levels[:num]
    order = np.argsort(-levels, kind="stable")
    merge_kernel(labels, heights, int(labels.max(initial=0)), sides, levels, order, np.float32(share))
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
    from hotlap.kernels.instances.cpu_kernels import count_edges_kernel, trace_kernel

    labels = np.ascontiguousarray(labels, np.int32)
    num_edges = int(count_edges_kernel(labels))
    points = np.empty((num_edges, 2), np.int64)
    starts, owners = np.empty(num_edges // 4 + 1, np.int64), np.empty(num_edges // 4, np.int32)
    num_rings = int(trace_kernel(labels, points, starts, owners))
    starts = starts[: num_rings + 1].copy()
    return points[: starts[-1]].copy(), starts, owners[:num_rings].copy()


def simplify(points: np.ndarray, starts: np.ndarray, tolerance: float) -> np.ndarray:
    """Which points stay; ``simplify_ref`` says which."""
    from hotlap.kernels.instances.cpu_kernels import simplify_kernel

    keep = np.zeros(len(points), np.bool_)
    simplify_kernel(points, starts, float(tolerance), keep)
    return keep


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
