"""The files of results: those of each picture, and those of all pictures together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hotlap.data.coco import CocoImage, coco_document, coco_image
from hotlap.data.geojson import write_geojson
from hotlap.data.imagej_roi import write_rois
from hotlap.data.object_table import csv_lines, write_xlsx
from hotlap.data.tiff import write_tiff
from hotlap.data.yolo_seg import write_yolo
from hotlap.records.run import write_atomic
from hotlap.segment.objects import COLUMNS
from hotlap.segment.overlay import draw_overlay, encode_overlay
from hotlap.segment.predict import Segmented

TABLES = {"csv": "objects.csv", "coco": "coco.json", "xlsx": "objects.xlsx"}
"""Files of all pictures together; last the one that may not hold all rows, so that the others are there."""

OUTLINED = frozenset({"yolo", "roi", "geojson"})
"""Formats that hold outlines; the others are made of labels and measurements."""


def label_tiff(labels: np.ndarray) -> bytes:  # [H, W] int32
    """The label picture as a TIFF of 16 bits, or of 32 where there are more objects than 65,535."""
    return write_tiff(labels.astype(np.uint16 if labels.max(initial=0) < 1 << 16 else np.uint32))


def picture_files(
    name: str, found: Segmented, picture: np.ndarray | None, formats: Iterable[str], category: str
) -> dict[str, bytes | str]:
    """The contents of one picture's files by their paths below the folder of results; overlays need the picture."""
    height, width = found.labels.shape
    made: dict[str, bytes | str] = {}
    for kind in formats:
        if kind == "labels":
            made[f"labels/{name}.tif"] = label_tiff(found.labels)
        elif kind == "overlay":
            assert picture is not None
            suffix, content = encode_overlay(draw_overlay(picture, found.labels))
            made[f"overlays/{name}{suffix}"] = content
        elif kind == "yolo":
            made[f"yolo/{name}.txt"] = write_yolo(found.outlines, height, width)
        elif kind == "roi":
            made[f"roi/{name}.zip"] = write_rois(found.outlines)
        elif kind == "geojson":
            measured = {m.label: m._asdict() for m in found.objects}
            made[f"geojson/{name}.geojson"] = write_geojson(found.outlines, measured, category)
    return made


def picture_entry(
    name: str, file_name: str, found: Segmented, formats: Iterable[str], page: int | None = None
) -> dict[str, Any]:
    """What the files of all pictures need to know of one; ``page`` where its file holds several.

    Lines of text are made here, picture by picture and beside the network: a quarter of a million of them take seconds.
    """
    entry: dict[str, Any] = {"name": name, "file_name": file_name, "num_objects": len(found.objects)}
    if "csv" in formats or "xlsx" in formats:
        rows = [(name, file_name, *measured) for measured in found.objects]
        entry |= {"csv": csv_lines(rows)} if "csv" in formats else {}
        entry |= {"xlsx": rows} if "xlsx" in formats else {}
    if "coco" in formats:
        image = CocoImage(file_name, found.labels, [m.confidence for m in found.objects], page)
        entry["coco"] = coco_image(image)
    return entry


def up_to_date(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry as it is now, of one that an earlier version may have noted: with rows and no lines made of them."""
    if isinstance(entry["files"], dict):
        return entry
    rows = [(entry["name"], entry["file_name"], *row) for row in entry["rows"]]
    files = dict.fromkeys(entry["files"])  # their sizes were not noted
    made = {"num_objects": len(rows), "xlsx": rows, "csv": entry.get("csv") or csv_lines(rows), "files": files}
    if "coco" in entry:
        image, annotations = entry["coco"]
        plain = ({key: a[key] for key in a if key not in ("id", "image_id")} for a in annotations)
        made["coco"] = ({k: image[k] for k in image if k != "id"}, "".join(json.dumps(a)[1:] + "\n" for a in plain))
    return {**entry, **made}


def write_tables(out: Path, entries: Sequence[Mapping[str, Any]], formats: Iterable[str], category: str) -> list[Path]:
    """Writes the files of all pictures together; which they are."""
    written = []
    for kind, name in TABLES.items():
        if kind in formats:
            write_atomic(out / name, table(kind, entries, category))
            written.append(out / name)
    return written


def table(kind: str, entries: Sequence[Mapping[str, Any]], category: str) -> str | bytes:
    """The content of one file of all pictures together."""
    if kind == "coco":
        return coco_document((entry["coco"] for entry in entries), category)
    columns = ("image", "file", *COLUMNS)
    if kind == "csv":
        return csv_lines([columns]) + "".join(entry["csv"] for entry in entries)
    return write_xlsx(columns, [row for entry in entries for row in entry["xlsx"]])
