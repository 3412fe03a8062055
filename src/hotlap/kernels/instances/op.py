"""The steps from maps to instances and their outlines: regions, depth, watershed, rings, holes, hulls, sums."""

from __future__ import annotations

import numpy as np

from hotlap.base.errors import ConfigError, ShapeError
from hotlap.kernels.choose import Choice, choose
from hotlap.kernels.instances import cpu, reference
from hotlap.kernels.instances.reference import Graded, Rings

IMPLS = ("cpu", "reference")


def choose_impl(impl: str = "auto") -> Choice:
    """Which implementation runs here, and why not the faster one."""
    return choose({"cpu": cpu.why_not, "reference": lambda: ""}, impl)


def regions(mask: np.ndarray, *, impl: str = "auto") -> tuple[np.ndarray, int]:  # [H, W] bool -> [H, W] int32
    """The 4-connected regions of a mask, numbered in the order of their first pixels, and how many there are."""
    _need_picture("mask", mask, mask.shape)
    mask = np.asarray(mask, bool)
    return cpu.regions(mask) if choose_impl(impl).impl == "cpu" else reference.regions_ref(mask)


def depth(mask: np.ndarray, *, impl: str = "auto") -> np.ndarray:  # [H, W] bool -> [H, W] float32
    """How deep each pixel of a mask lies, as the eighth power of its share of the greatest depth around.

    1 on the top of each hill, 0 outside the mask. Depth is the distance to the nearest background, blurred by a pixel.
    """
    _need_picture("mask", mask, mask.shape)
    mask = np.asarray(mask, bool)
    return cpu.depth(mask) if choose_impl(impl).impl == "cpu" else reference.depth_ref(mask)


def grade(
    foreground: np.ndarray,  # [H, W]
    heights: np.ndarray,  # [H, W]
    threshold: float,
    seed_threshold: float,
    *,
    impl: str = "auto",
) -> Graded:  # [H, W] bool, bool, uint8
    """What a watershed needs: where objects are, where they start, and levels that are low where heights are high."""
    _need_picture("heights", heights, foreground.shape)
    run = cpu.grade if choose_impl(impl).impl == "cpu" else reference.grade_ref
    return run(foreground, heights, threshold, seed_threshold)


def merge(labels: np.ndarray, heights: np.ndarray, share: float, *, impl: str = "auto") -> np.ndarray:  # [H, W] int32
    """Labels that meet become one, from the highest pass down, where it reaches a share of the lower one's top.

    On the sides where labels meet, a pass is as high as the lower of the two pixels.
    """
    _need_picture("heights", heights, labels.shape)
    run = cpu.merge if choose_impl(impl).impl == "cpu" else reference.merge_ref
    return run(labels, heights, share)


def renumber(labels: np.ndarray, min_area: int, *, impl: str = "auto") -> np.ndarray:  # [H, W] int32
    """The labels that have at least ``min_area`` pixels, numbered from 1 by their first ones."""
    _need_picture("labels", labels, labels.shape)
    run = cpu.renumber if choose_impl(impl).impl == "cpu" else reference.renumber_ref
    return run(labels, min_area)


def watershed(
    levels: np.ndarray,  # [H, W] uint8
    seeds: np.ndarray,  # [H, W] int32, 0 where there is none
    mask: np.ndarray,  # [H, W] bool
    *,
    impl: str = "auto",
) -> np.ndarray:  # [H, W] int32
    """Seeds grown over the mask: always the pixel of the lowest level next, of equal ones the first to be reached.

    Seeds outside the mask stay; a part of the mask that no seed reaches stays 0.
    """
    _need_picture("seeds", seeds, levels.shape)
    _need_picture("mask", mask, levels.shape)
    if levels.dtype != np.uint8:
        raise ShapeError(f"levels are {levels.dtype}", expected="uint8, one of 256 levels")
    mask = np.asarray(mask, bool)
    run = cpu.watershed if choose_impl(impl).impl == "cpu" else reference.watershed_ref
    return run(levels, np.asarray(seeds, np.int32), mask)


def trace(labels: np.ndarray, *, impl: str = "auto") -> Rings:  # [H, W]
    """The corners of the rings around each label and its holes, where each ring starts, and whose it is.

    A ring runs along the sides of pixels, with the object on its right in a picture whose y points down: rings around
    an object have a positive area by the shoelace formula, rings around a hole a negative one. Pixels of an object
    that touch at a corner only are apart, so an outer ring goes around one 4-connected part.
    """
    _need_picture("labels", labels, labels.shape)
    run = cpu.trace if choose_impl(impl).impl == "cpu" else reference.trace_ref
    return run(np.asarray(labels, np.int32))


def simplify(
    points: np.ndarray,  # [P, 2] int64
    starts: np.ndarray,  # [R + 1] int64
    tolerance: float,
    *,
    impl: str = "auto",
) -> np.ndarray:  # [P] bool
    """Which points of each ring are kept, so that none of the others is farther than ``tolerance`` from the line."""
    if not tolerance >= 0:
        raise ConfigError(f"tolerance = {tolerance} is not valid", expected="a distance of at least 0")
    run = cpu.simplify if choose_impl(impl).impl == "cpu" else reference.simplify_ref
    return run(points, starts, tolerance)


def filled(rings: Rings, which: np.ndarray, *, impl: str = "auto") -> np.ndarray:  # [L] -> [L, 5] float64
    """Pixels of these labels, in ascending order, with their holes filled, and the runs of ``sums`` in four directions.

    ``rings`` are those of ``trace``.
    """
    run = cpu.filled if choose_impl(impl).impl == "cpu" else reference.filled_ref
    return run(rings, which)


def holders(labels: np.ndarray, rings: Rings, *, impl: str = "auto") -> np.ndarray:  # [H, W] -> [num] int32
    """Whose hole each label from 1 on lies in, 0 if in none; of several holes around it, the smallest counts.

    ``rings`` are those of ``trace``.
    """
    _need_picture("labels", labels, labels.shape)
    run = cpu.holders if choose_impl(impl).impl == "cpu" else reference.holders_ref
    return run(labels, rings)


def tangled(rings: Rings, holes: np.ndarray, *, impl: str = "auto") -> np.ndarray:  # [R] bool -> [L] int32
    """The labels, in ascending order, whose rings bound no area: they touch or cross themselves or each other, or one
    lies on the wrong side of another. ``holes`` says which rings are to be holes.
    """
    run = cpu.tangled if choose_impl(impl).impl == "cpu" else reference.tangled_ref
    return run(rings, holes)


def hulls(points: np.ndarray, starts: np.ndarray, *, impl: str = "auto") -> np.ndarray:  # [P, 2], [G + 1] -> [G, 5]
    """Feret's diameters of each group of corners (max, min, across the max), the max's angle and the hull's area."""
    run = cpu.hulls if choose_impl(impl).impl == "cpu" else reference.hulls_ref
    return run(points, starts)


def sums(
    labels: np.ndarray,  # [H, W]
    values: np.ndarray,  # [H, W]
    num: int,
    *,
    impl: str = "auto",
) -> tuple[np.ndarray, np.ndarray]:  # [num, 11] float64, [num, 8] int64
    """Counts, moments and runs of labels 1 to ``num``, and their least and greatest coordinates.

    Sums: pixels, x, y, xx, yy, xy, value, then the runs along rows, columns and the two diagonals. Spans: x, y, x + y
    and x - y, each least and greatest.
    """
    _need_picture("values", values, labels.shape)
    run = cpu.sums if choose_impl(impl).impl == "cpu" else reference.sums_ref
    return run(labels, values, num)


def _need_picture(name: str, given: np.ndarray, shape: tuple[int, ...]) -> None:
    if given.ndim != 2 or given.shape != shape:
        raise ShapeError(f"{name} is {list(given.shape)}", expected=f"[H, W] = {list(shape)}")
