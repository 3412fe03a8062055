"""Objects as ImageJ's regions of interest: a zip with one ``.roi`` for each, which its ROI Manager opens.

A plain object is a traced region where all sides are those of pixels, as ImageJ's wand makes them, and a polygon where
it was simplified: ImageJ measures the perimeter of each in its own way. One with holes, in several parts, or with
corners between pixels is a composite.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from hotlap.base.errors import DataError
from hotlap.data.file_bytes import ZIP_FAULTS, read_whole
from hotlap.data.outline import Outline, Polygon

VERSION = 228
_POLYGON, _RECTANGLE, _FREEHAND, _TRACED = 0, 1, 7, 8
_MOVE, _LINE, _CLOSE = 0.0, 1.0, 4.0
_HEADER = struct.Struct(">4sHBBhhhhH16sHi20sI")
_SECOND_HEADER = bytes(64)
"""Of channel, slice, frame and name, all unsaid. ImageJ always writes one, and there are readers that rely on it."""
_MOST = 32767
_MOST_CORNERS = 65535


def write_rois(outlines: Sequence[Outline]) -> bytes:
    """The zip of a picture's regions, named by label; the same outlines always give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for outline, content in zip(outlines, _regions(outlines), strict=True):
            archive.writestr(zipfile.ZipInfo(f"{outline.label:05d}.roi", (1980, 1, 1, 0, 0, 0)), content)
    return buffer.getvalue()


def _regions(outlines: Sequence[Outline]) -> Iterator[bytes]:
    """Each region's file; what is seen of all corners together takes a quarter of the time of one by one."""
    if not outlines:
        return
    rings = [part.outer for outline in outlines for part in outline.parts]
    corners, ends = np.concatenate(rings), np.cumsum([0, *map(len, rings)])
    after = np.roll(corners, -1, axis=0)
    after[ends[1:] - 1] = corners[ends[:-1]]
    begins = ends[:-1][np.cumsum([0, *(len(outline.parts) for outline in outlines)])[:-1]]
    low, high = np.minimum.reduceat(corners, begins), np.maximum.reduceat(corners, begins)
    whole = np.logical_and.reduceat((corners == np.round(corners)).all(1), begins).tolist()
    traced = np.logical_and.reduceat((after == corners).any(1), begins).tolist()
    boxes = np.minimum(np.stack([low[:, 1], low[:, 0], high[:, 1], high[:, 0]], axis=1), _MOST).astype(int).tolist()
    for number, outline in enumerate(outlines):
        outer = outline.parts[0].outer
        plain = whole[number] and len(outline.parts) == 1 and not outline.parts[0].holes
        if plain and high[number].max() <= _MOST and len(outer) <= _MOST_CORNERS:
            body = (outer - low[number]).T.astype(">i2").tobytes()
            yield _region(_TRACED if traced[number] else _POLYGON, boxes[number], len(outer), 0, body)
        else:
            path = [value for part in outline.parts for ring in (part.outer, *part.holes) for value in _path(ring)]
            yield _region(_RECTANGLE, boxes[number], 0, len(path), np.array(path, ">f4").tobytes())


def _region(kind: int, box: Sequence[int], num_corners: int, num_steps: int, body: bytes) -> bytes:
    counts = num_corners, bytes(16), 0, num_steps, bytes(20), _HEADER.size + len(body)
    return _HEADER.pack(b"Iout", VERSION, kind, 0, *box, *counts) + body + _SECOND_HEADER


def _path(ring: np.ndarray) -> list[float]:
    """A ring as ImageJ draws it: move, lines, close."""
    steps = [value for n, (x, y) in enumerate(ring.tolist()) for value in (_LINE if n else _MOVE, x, y)]
    return [*steps, _CLOSE]


def read_rois(path: Path) -> list[Outline]:
    """The regions of a zip that were traced, drawn or composed; rings that run backwards are holes."""
    try:
        with zipfile.ZipFile(io.BytesIO(read_whole(path))) as archive:
            names = [name for name in archive.namelist() if name.lower().endswith(".roi")]
            return [_parse(archive.read(name), number, name, path) for number, name in enumerate(names, start=1)]
    except (*ZIP_FAULTS, OSError) as error:
        raise DataError(f"file {str(path)!r} is no zip of ImageJ regions: {error}") from error


def _parse(content: bytes, number: int, name: str, path: Path) -> Outline:
    magic, _, kind, _, top, left, _, _, count, _, _, size, _, _ = _HEADER.unpack_from(content)
    if magic != b"Iout":
        raise DataError(f"file {str(path)!r}: {name!r} does not begin as a region does")
    if kind in (_TRACED, _POLYGON, _FREEHAND):
        corners = np.frombuffer(content, ">i2", 2 * count, _HEADER.size).reshape(2, count).T.astype(np.float64)
        return Outline(number, (Polygon(corners + np.array([left, top])),))
    if kind == _RECTANGLE and size > 0:
        return Outline(number, _parts(_rings(np.frombuffer(content, ">f4", size, _HEADER.size).tolist())))
    raise DataError(f"file {str(path)!r}: {name!r} is of type {kind}", expected="a traced region, polygon or composite")


def _rings(path: list[float]) -> list[np.ndarray]:
    rings: list[list[tuple[float, float]]] = []
    at = 0
    while at < len(path):
        if path[at] == _CLOSE:
            at += 1
            continue
        if path[at] not in (_MOVE, _LINE) or at + 2 >= len(path):
            raise ValueError(f"a path with the step {path[at]:g}")
        if path[at] == _MOVE:
            rings.append([])
        rings[-1].append((path[at + 1], path[at + 2]))
        at += 3
    return [np.array(ring) for ring in rings]


def _parts(rings: list[np.ndarray]) -> tuple[Polygon, ...]:
    """Polygons from rings in the order they were written: each outer one, then its holes."""
    parts: list[Polygon] = []
    for ring in rings:
        x, y = ring.T
        if float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) > 0 or not parts:
            parts.append(Polygon(ring))
        else:
            parts[-1] = Polygon(parts[-1].outer, (*parts[-1].holes, ring))
    return tuple(parts)
