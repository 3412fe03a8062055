"""Objects as COCO's instance annotations: masks as compressed run lengths, so holes are kept."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hotlap.base.errors import DataError
from hotlap.data.file_bytes import read_text


@dataclass(frozen=True)
class CocoImage:
    """One image with its objects."""

    file_name: str
    labels: np.ndarray  # [H, W] int
    scores: Sequence[float]
    """Confidence of labels 1, 2, ..."""
    page: int | None = None
    """From 0, where the file holds several."""


def label_runs(labels: np.ndarray) -> dict[int, list[int]]:  # [H, W]
    """Run lengths of each label, column by column: pixels outside, inside, outside, ...; their sum is all pixels."""
    flat = np.asarray(labels).T.ravel()
    starts = np.flatnonzero(np.diff(flat, prepend=flat[:1] - 1))
    lengths = np.diff(starts, append=flat.size)
    whose = flat[starts]
    order = np.argsort(whose, kind="stable")
    order = order[whose[order] != 0]
    bounds = np.flatnonzero(np.diff(whose[order], prepend=0))
    found = {}
    for part in np.split(order, bounds[1:]) if len(order) else []:
        begins, ends = starts[part], starts[part] + lengths[part]
        counts = np.empty(2 * len(part), np.int64)
        counts[0::2] = begins - np.concatenate([[0], ends[:-1]])
        counts[1::2] = lengths[part]
        tail = flat.size - int(ends[-1])
        found[int(whose[part[0]])] = [*counts.tolist(), *([tail] if tail else [])]
    return found


def compress_runs(runs: Sequence[Sequence[int]]) -> list[str]:
    """Run lengths of each object as COCO's text: differences from the run before the last, five bits a character."""
    sizes = np.array([len(counts) for counts in runs], np.int64)
    values = np.array([count for counts in runs for count in counts], np.int64)
    place = np.arange(len(values)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    late = np.flatnonzero(place > 2)
    values[late] -= values.copy()[late - 2]
    letters, used = [], []
    going = np.ones(len(values), bool)
    while going.any():
        bits = values & 31
        values = values >> 5
        more = values != np.where(bits & 16, -1, 0)
        letters.append(bits + 48 + 32 * more)
        used.append(going)
        going = going & more
    if not letters:
        return ["" for _ in runs]
    mask = np.stack(used, axis=1)
    text = np.stack(letters, axis=1)[mask].astype(np.uint8).tobytes().decode("ascii")
    ends = np.concatenate([[0], np.cumsum(mask.sum(1))])[np.concatenate([[0], np.cumsum(sizes)])].tolist()
    return [text[begin:end] for begin, end in itertools.pairwise(ends)]


def expand_runs(text: str) -> list[int]:
    """The run lengths that a text spells."""
    counts: list[int] = []
    at = 0
    while at < len(text):
        value, shift, more = 0, 0, True
        while more:
            if at >= len(text) or not 0 <= ord(text[at]) - 48 < 64:
                raise DataError(f"run lengths {text[:40]!r} are no COCO text", expected="characters from 0 to o")
            bits = ord(text[at]) - 48
            value |= (bits & 31) << shift
            more, at, shift = bool(bits & 32), at + 1, shift + 5
            if not more and bits & 16:
                value -= 1 << shift
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
    return counts


def runs_to_mask(counts: Sequence[int], height: int, width: int) -> np.ndarray:  # [H, W] bool
    """The pixels that run lengths mark."""
    if sum(counts) != height * width or min(counts, default=0) < 0:
        raise DataError(
            f"run lengths add up to {sum(counts)}", expected=f"{height * width} for {height}x{width} pixels"
        )
    inside = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
    return np.ascontiguousarray(inside.reshape(width, height).T)


def coco_image(
    image: CocoImage, number: int, first_id: int, category: int = 1
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The entries of one image: itself and its annotations, numbered from ``first_id``."""
    height, width = image.labels.shape
    annotations: list[dict[str, Any]] = []
    runs = label_runs(image.labels)
    for (label, counts), text in zip(runs.items(), compress_runs(list(runs.values())), strict=True):
        annotations.append(
            {
                "id": first_id + len(annotations),
                "image_id": number,
                "category_id": category,
                "segmentation": {"size": [height, width], "counts": text},
                "area": int(sum(counts[1::2])),
                "bbox": _box(counts, height),
                "iscrowd": 0,
                "score": round(float(image.scores[label - 1]), 6) if label <= len(image.scores) else None,
            }
        )
    entry = {"id": number, "file_name": image.file_name, "width": width, "height": height}
    return entry if image.page is None else {**entry, "page": image.page}, annotations


def _box(counts: Sequence[int], height: int) -> list[int]:
    """Left, top, width and height of what run lengths mark."""
    firsts = list(itertools.accumulate(counts))[:-1:2]
    top, bottom, left, right = height, -1, firsts[0] // height, 0
    for first, count in zip(firsts, counts[1::2], strict=True):
        last = first + count - 1
        right = last // height
        # A run that goes on into the next column reaches the last row of one and the first of the other.
        over = first // height != right
        top, bottom = min(top, 0 if over else first % height), max(bottom, height - 1 if over else last % height)
    return [left, top, right - left + 1, bottom - top + 1]


def coco_document(images: list[dict[str, Any]], annotations: list[dict[str, Any]], category: str) -> dict[str, Any]:
    """A whole COCO file."""
    return {
        "info": {"description": "written by hotlap segment predict"},
        "images": images,
        "annotations": annotations,
        "categories": [{"id": 1, "name": category, "supercategory": ""}],
    }


def read_coco(path: Path) -> dict[str, np.ndarray]:
    """The label picture of each image of a COCO file whose masks are compressed run lengths.

    By file name; that of a page among several is followed by a colon and its number.
    """
    try:
        data = json.loads(read_text(path))
        pictures = {i["id"]: (_name(i), np.zeros((i["height"], i["width"]), np.int32)) for i in data["images"]}
        for annotation in data["annotations"]:
            height, width = annotation["segmentation"]["size"]
            mask = runs_to_mask(expand_runs(annotation["segmentation"]["counts"]), height, width)
            picture = pictures[annotation["image_id"]][1]
            picture[mask] = picture.max() + 1
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(f"file {str(path)!r} is no COCO file with run lengths: {error!r}") from error
    return dict(pictures.values())


def _name(image: dict[str, Any]) -> str:
    return f"{image['file_name']}:{image['page']}" if "page" in image else str(image["file_name"])
