"""Objects as YOLO's segmentation labels: a line each, the class and the corners as shares of the picture's sides.

The format has no holes: a hole is joined to the outside by a way there and back, which fills to the same pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hotlap.base.errors import DataError
from hotlap.data.file_bytes import read_text
from hotlap.data.outline import Outline, Polygon, keyhole


def write_yolo(outlines: Sequence[Outline], height: int, width: int, category: int = 0) -> str:
    """The lines of one picture's label file; an object in several parts has a line for each."""
    across, down = _Shares(width), _Shares(height)
    lines = []
    for outline in outlines:
        for part in outline.parts:
            corners = " ".join([f"{across[x]} {down[y]}" for x, y in keyhole(part).tolist()])
            lines.append(f"{category} {corners}\n")
    return "".join(lines)


class _Shares(dict[float, str]):
    """What to write for a coordinate; they are few, and each comes again and again."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self._side = side

    def __missing__(self, coordinate: float) -> str:
        self[coordinate] = text = f"{coordinate / self._side:.8g}"
        return text


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
