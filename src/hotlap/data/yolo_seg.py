"""Objects as YOLO's segmentation labels: a line each, the class and the corners as shares of the picture's sides.

The format has no holes: a hole is joined to the outside by a way there and back, which fills to the same pixels.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hotlap.base.errors import DataError
from hotlap.data.file_bytes import read_text
from hotlap.data.outline import Outline, Polygon, corner_texts, keyhole


def write_yolo(outlines: Sequence[Outline], height: int, width: int, category: int = 0) -> str:
    """The lines of one picture's label file; an object in several parts has a line for each."""
    rings = [keyhole(part) for outline in outlines for part in outline.parts]
    corners = corner_texts(rings, lambda x: _share(x, width), lambda y: f" {_share(y, height)}")
    return "".join([f"{category} {' '.join(ring)}\n" for ring in corners])


@functools.lru_cache(maxsize=1 << 16)
def _share(coordinate: float, side: int) -> str:
    return f"{coordinate / side:.8g}"


def read_yolo(path: Path, height: int, width: int) -> list[Outline]:
    """The polygons of a label file, in pixels of a picture of this size."""
    found = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        try:
            values = np.array([float(word) for word in line.split()[1:]])
        except ValueError as error:
            raise DataError(f"file {str(path)!r}, line {number}: {error}") from error
        if len(values) < 6 or len(values) % 2:
            raise DataError(
                f"file {str(path)!r}, line {number} has {len(values)} numbers", expected="pairs, at least 3"
            )
        found.append(Outline(number, (Polygon(values.reshape(-1, 2) * (width, height)),)))
    return found
