"""What is measured on each object: size, shape and confidence, in pixels or in micrometres.

Area counts pixels. The perimeter is Crofton's, from the runs of pixels along four directions: on discs it is within
about 2%, where walking along the sides of pixels gives a square's perimeter for a circle. Feret's diameters come from
the convex hull of the pixels' corners, so that a row of ten pixels is ten long and one wide.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hotlap.base.errors import ConfigError, ShapeError
from hotlap.kernels.instances.op import filled, hulls, sums, trace
from hotlap.kernels.instances.reference import Rings, ring_areas


class ObjectMetrics(NamedTuple):
    """One object; lengths and areas are in ``unit``, positions always in pixels.

    A tuple, since making hundreds of frozen dataclasses takes as long as measuring the pixels.
    """

    label: int
    """Its number in the label picture."""
    x_px: float
    """Its centre, from the left; the middle of the first pixel is 0.5."""
    y_px: float
    """Its centre, from the top."""
    left_px: int
    """Its bounding box: the first column."""
    top_px: int
    """The first row."""
    width_px: int
    """Columns of the bounding box."""
    height_px: int
    """Rows of the bounding box."""
    unit: str
    """px or um."""
    area: float
    """Without its holes."""
    area_filled: float
    """With its holes."""
    num_holes: int
    """Holes in it."""
    perimeter: float
    """Around it, holes apart."""
    perimeter_with_holes: float
    """Around it and around its holes."""
    equivalent_diameter: float
    """Of a disc of its area."""
    feret_max: float
    """The greatest distance between parallels that hold it."""
    feret_min: float
    """The least distance between parallels that hold it."""
    feret_orthogonal: float
    """Its width across the greatest Feret diameter."""
    feret_angle_deg: float
    """Direction of the greatest Feret diameter: 0 to the right, 90 down, below 180."""
    feret_aspect_ratio: float
    """Greatest over least Feret diameter."""
    major_axis: float
    """Length of the ellipse with its second moments."""
    minor_axis: float
    """Width of that ellipse."""
    circularity: float
    """4 pi area / perimeter^2: 1 for a disc. Held at 1, above which the perimeter of a few pixels can bring it."""
    compactness: float
    """perimeter^2 / (4 pi area): 1 for a disc, more for anything else."""
    solidity: float
    """Area over the area of the convex hull."""
    convexity: float
    """Perimeter of the convex hull over the perimeter, both Crofton's: 1 for a convex object."""
    extent: float
    """Area over that of the bounding box."""
    confidence: float
    """Mean probability of its pixels."""


COLUMNS = ObjectMetrics._fields


def measure_objects(
    labels: np.ndarray,  # [H, W] int
    probability: np.ndarray | None = None,  # [H, W]
    *,
    um_per_px: float | None = None,
    rings: Rings | None = None,
) -> list[ObjectMetrics]:
    """The metrics of every object of a label picture, by label; without probabilities the confidence is NaN.

    ``rings`` are those of ``trace``, where they are known.
    """
    if um_per_px is not None and not (0 < um_per_px < float("inf")):
        raise ConfigError(f"um_per_px = {um_per_px} is not valid", expected="micrometres per pixel, above 0")
    if probability is not None and probability.shape != labels.shape:
        raise ShapeError(
            f"probability is {list(probability.shape)}", expected=f"the size of the labels, {list(labels.shape)}"
        )
    points, starts, owners = rings = trace(labels) if rings is None else rings
    values = np.full(labels.shape, np.nan, np.float32) if probability is None else probability
    totals, spans = sums(labels, values, int(owners.max(initial=0)))
    present = np.flatnonzero(totals[:, 0])
    feret = _feret(points, starts, owners, present + 1)
    num_holes = np.bincount(owners[ring_areas(points, starts) < 0], minlength=len(totals) + 1)[1:]
    holed = np.flatnonzero(num_holes)
    whole = totals[:, [0, 7, 8, 9, 10]]
    whole[holed] = filled(rings, holed + 1)
    columns = _columns(present + 1, totals[present], spans[present], feret, whole[present], um_per_px or 1.0)
    columns["num_holes"] = num_holes[present].tolist()
    columns["unit"] = ["um" if um_per_px else "px"] * len(present)
    return [ObjectMetrics._make(row) for row in zip(*(columns[name] for name in COLUMNS), strict=True)]


def _feret(points: np.ndarray, starts: np.ndarray, owners: np.ndarray, labels: np.ndarray) -> np.ndarray:  # [L, 5]
    """Hull sizes of each label, over all of its rings."""
    whose = np.repeat(owners, np.diff(starts))
    order = np.argsort(whose, kind="stable")
    grouped = np.searchsorted(whose[order], np.append(labels, np.iinfo(np.int32).max))
    return hulls(np.ascontiguousarray(points[order]), grouped.astype(np.int64))


def _crofton(runs: np.ndarray) -> np.ndarray:  # [..., 4] -> [...]
    """Crofton's perimeter from the runs along rows, columns and both diagonals, which lie closer by sqrt(2)."""
    return np.asarray(np.pi / 4 * (runs[..., 0] + runs[..., 1] + (runs[..., 2] + runs[..., 3]) / np.sqrt(2)))


def _columns(
    labels: np.ndarray,
    totals: np.ndarray,
    spans: np.ndarray,
    feret: np.ndarray,
    whole: np.ndarray,
    scale: float,
) -> dict[str, list[Any]]:
    """Each metric of all objects; ``whole`` are the pixels and runs of each with its holes filled."""
    area, x, y, xx, yy, xy, value = totals[:, :7].T
    left, right, top, bottom = spans[:, :4].T
    with_holes = _crofton(totals[:, 7:11])
    outer = _crofton(whole[:, 1:])
    major, minor = _axes(xx / area - (x / area) ** 2, yy / area - (y / area) ** 2, xy / area - x * y / area**2)
    # Each row, column and diagonal that a convex object reaches holds one run.
    reach = np.stack([bottom - top, right - left, spans[:, 7] - spans[:, 6], spans[:, 5] - spans[:, 4]], axis=1) + 1
    roundness = np.minimum(4 * np.pi * area / outer**2, 1.0)
    made = {
        "label": labels, "x_px": x / area + 0.5, "y_px": y / area + 0.5, "left_px": left, "top_px": top,
        "width_px": right - left + 1, "height_px": bottom - top + 1,
        "area": area * scale**2, "area_filled": whole[:, 0] * scale**2,
        "perimeter": outer * scale, "perimeter_with_holes": with_holes * scale,
        "equivalent_diameter": np.sqrt(4 * area / np.pi) * scale,
        "feret_max": feret[:, 0] * scale, "feret_min": feret[:, 1] * scale, "feret_orthogonal": feret[:, 2] * scale,
        "feret_angle_deg": np.degrees(feret[:, 3]) % 180.0, "feret_aspect_ratio": feret[:, 0] / feret[:, 1],
        "major_axis": major * scale, "minor_axis": minor * scale,
        "circularity": roundness, "compactness": 1 / roundness, "solidity": area / feret[:, 4],
        "convexity": np.minimum(_crofton(reach) / outer, 1.0),
        "extent": area / ((right - left + 1) * (bottom - top + 1)), "confidence": value / area,
    }  # fmt: skip
    return {name: values.tolist() for name, values in made.items()}


def _axes(xx: np.ndarray, yy: np.ndarray, xy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lengths and widths of the ellipses with these central moments; a pixel is a square, which adds 1/12."""
    xx, yy = xx + 1 / 12, yy + 1 / 12
    middle, spread = (xx + yy) / 2, np.hypot((xx - yy) / 2, xy)
    return 4 * np.sqrt(middle + spread), 4 * np.sqrt(np.maximum(middle - spread, 0.0))
