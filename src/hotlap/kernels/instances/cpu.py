"""Instances and their outlines on the CPU, compiled by numba; several images may be worked on in several threads."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from hotlap.kernels.instances.reference import Graded, Rings

SIDES = 1 << 15
"""Sides where labels meet that there is room for at first; where there are more, they are gone through again."""


def why_not() -> str:
    """Why this implementation cannot run here; '' if it can."""
    return "" if find_spec("numba") is not None else "numba is not installed"


def regions(mask: np.ndarray) -> tuple[np.ndarray, int]:
    """Numbered regions; ``regions_ref`` says how."""
    from hotlap.kernels.instances.cpu_kernels import regions_kernel

    labels = np.empty(mask.shape, np.int32)
    return labels, int(regions_kernel(np.ascontiguousarray(mask), labels))


def watershed(levels: np.ndarray, seeds: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Grown seeds; ``watershed_ref`` says how."""
    from hotlap.kernels.instances.cpu_kernels import watershed_kernel

    labels = np.array(seeds, np.int32, order="C")
    watershed_kernel(np.ascontiguousarray(levels), np.ascontiguousarray(mask), labels)
    return labels


def grade(foreground: np.ndarray, heights: np.ndarray, threshold: float, seed_threshold: float) -> Graded:
    """Mask, cores and levels; ``grade_ref`` says how."""
    from hotlap.kernels.instances.cpu_kernels import grade_kernel

    shape = foreground.shape
    made = np.empty(shape, np.bool_), np.empty(shape, np.bool_), np.empty(shape, np.uint8)
    given = [np.ascontiguousarray(picture, np.float32) for picture in (foreground, heights)]
    grade_kernel(*given, np.float32(threshold), np.float32(seed_threshold), *made)
    return made


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
