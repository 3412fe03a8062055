"""Objects that a person has drawn or changed: polygons measured anew, and written in every format of results."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hotlap.base.errors import DataError, TooLarge, UnknownName, did_you_mean
from hotlap.data.outline import Outline, Polygon
from hotlap.segment.contours import covered, draw_outlines
from hotlap.segment.exports import TABLES, picture_entry, picture_files, table
from hotlap.segment.objects import ObjectMetrics, measure_objects
from hotlap.segment.predict import Segmented

FORMATS = {
    "labels": ("Label picture (TIFF)", ".tif"),
    "coco": ("COCO (JSON)", ".json"),
    "yolo": ("YOLO segmentation", ".txt"),
    "roi": ("ImageJ ROI", ".zip"),
    "geojson": ("GeoJSON", ".geojson"),
    "csv": ("Table (CSV)", ".csv"),
    "xlsx": ("Table (Excel)", ".xlsx"),
}
"""What each format is called, and how its files end."""
CATEGORY = "cell"
MOST_DRAWN = 100_000_000
"""Pixels in the boxes of all objects of one request."""
_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, kw_only=True, eq=False)
class EditedObject:
    """One polygon, in the picture's own pixels."""

    id: int
    part: Polygon
    confidence: float = 1.0
    """Of what a person has drawn: 1."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EditedPicture:
    """A picture's objects; the picture itself is not needed."""

    file: str
    """Its name, of which only the stem is used."""
    width: int
    height: int
    objects: tuple[EditedObject, ...]
    um_per_px: float | None = None


@dataclass(frozen=True)
class Exported:
    """A file to hand out."""

    name: str
    content: bytes


def make_polygon(outer: Sequence[Sequence[float]], holes: Sequence[Sequence[Sequence[float]]]) -> Polygon:
    """A polygon from corners in either direction: around it clockwise on the screen, around holes the other way."""
    return Polygon(_directed(outer, 1), tuple(_directed(hole, -1) for hole in holes))


def _directed(corners: Sequence[Sequence[float]], sign: int) -> np.ndarray:
    ring = np.array(corners, np.float64).reshape(-1, 2)
    x, y = ring[:, 0], ring[:, 1]
    turns = float(x @ np.roll(y, -1) - y @ np.roll(x, -1))
    return ring if turns * sign >= 0 else np.ascontiguousarray(ring[::-1])


def measure_edited(picture: EditedPicture) -> list[ObjectMetrics | None]:
    """The metrics of each object by itself, however they overlap; None for one that encloses no pixel's centre."""
    _check_work(picture)
    return [_measure(one, picture) for one in picture.objects]


def _check_work(picture: EditedPicture) -> None:
    sides = [one.part.outer.max(0) - one.part.outer.min(0) for one in picture.objects]
    limit = np.array([picture.width, picture.height])
    drawn = sum(float(np.prod(np.minimum(side + 1, limit))) for side in sides)
    if drawn > MOST_DRAWN:
        raise TooLarge(
            f"the objects of {picture.file!r} span {drawn:.3g} pixels", expected=f"at most {MOST_DRAWN:.3g} in all"
        )


def _measure(one: EditedObject, picture: EditedPicture) -> ObjectMetrics | None:
    mask, (left, top) = covered(one.part, (picture.height, picture.width))
    if not mask.any():
        return None
    (found,) = measure_objects(mask.astype(np.int32), um_per_px=picture.um_per_px)
    return found._replace(
        label=one.id, x_px=found.x_px + left, y_px=found.y_px + top, left_px=found.left_px + left,
        top_px=found.top_px + top, confidence=one.confidence,
    )  # fmt: skip


def export_edited(pictures: Sequence[EditedPicture], kind: str, category: str = CATEGORY) -> Exported:
    """The objects of pictures in one format: a file for all of them, or one each, and of several a zip.

    Objects are numbered from 1 in the order of their ids; those that enclose no pixel are left out.
    """
    if kind not in FORMATS:
        raise UnknownName(f"unknown format {kind!r}", remedy=did_you_mean(kind, FORMATS))
    if not pictures:
        raise DataError("pictures = [] has nothing to export", expected="one picture or more")
    named = dict(zip(_names(pictures), pictures, strict=True))
    found = {name: _segmented(picture) for name, picture in named.items()}
    if kind in TABLES:
        entries = [picture_entry(name, named[name].file, made, [kind]) for name, made in found.items()]
        return Exported(TABLES[kind], _as_bytes(table(kind, entries, category)))
    files: dict[str, bytes] = {}
    for name, made in found.items():
        ((path, content),) = picture_files(name, made, None, [kind], category).items()
        files[Path(path).name] = _as_bytes(content)
    if len(files) == 1:
        return Exported(*next(iter(files.items())))
    return Exported(f"{kind}.zip", _zipped(files))


def _segmented(picture: EditedPicture) -> Segmented:
    """The picture's objects as a network's would be."""
    measured = measure_edited(picture)
    kept = sorted(
        ((one, found) for one, found in zip(picture.objects, measured, strict=True) if found is not None),
        key=lambda pair: pair[0].id,
    )
    size = np.array([picture.width, picture.height], np.float64)
    parts = [
        Polygon(one.part.outer.clip(0, size), tuple(hole.clip(0, size) for hole in one.part.holes)) for one, _ in kept
    ]
    outlines = [Outline(number, (part,)) for number, part in enumerate(parts, start=1)]
    objects = [found._replace(label=number) for number, (_, found) in enumerate(kept, start=1)]
    return Segmented(draw_outlines(outlines, (picture.height, picture.width)), outlines, objects)


def _names(pictures: Sequence[EditedPicture]) -> list[str]:
    """A name for each picture's results: safe as a file's, and different from the others'."""
    names: list[str] = []
    for picture in pictures:
        stem = re.sub(r"[^\w.-]+", "_", re.split(r"[\\/]", picture.file)[-1].rpartition(".")[0] or picture.file)
        stem = stem.strip(".")[:100] or "picture"
        number, name = 1, stem
        while name in names:
            number += 1
            name = f"{stem}_{number}"
        names.append(name)
    return names


def _as_bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _zipped(files: dict[str, bytes]) -> bytes:
    """A zip whose bytes depend on its content alone."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, _DATE), content, zipfile.ZIP_DEFLATED)
    return made.getvalue()
