"""Objects as COCO's instance annotations: masks as compressed run lengths, so holes are kept."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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


class Runs(NamedTuple):
    """The runs of pixels of a picture's objects, counted down its columns; those of one object stand together."""

    first: np.ndarray  # [n + 1]
    """Where the runs of each object begin, and where the last ones end."""
    begin: np.ndarray  # [r]
    end: np.ndarray  # [r]
    label: np.ndarray  # [n]


def label_runs(labels: np.ndarray) -> Runs:  # [H, W]
    """The runs of each label but 0."""
    height, width = labels.shape
    # Where a pixel differs from the one above it: with the picture turned, to see columns, all takes 15 times as long.
    down, across = np.flatnonzero(labels[1:] != labels[:-1]), np.flatnonzero(labels[0, 1:] != labels[-1, :-1])
    begin = np.sort(np.concatenate([[0], down % width * height + down // width + 1, (across + 1) * height]))
    end, whose = np.append(begin[1:], labels.size), labels[begin % height, begin // height]
    order = np.argsort(whose, kind="stable")[np.count_nonzero(whose == 0) :]
    first = np.flatnonzero(np.diff(whose[order], prepend=0))
    return Runs(np.append(first, len(order)), begin[order], end[order], whose[order][first])


def compress_runs(runs: Runs, num_pixels: int) -> list[str]:
    """Run lengths of each object, outside, inside, outside, ..., as COCO's text: see ``expand_runs``."""
    values, sizes = _lengths(runs, num_pixels)
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
    mask = np.stack(used, axis=1)
    text = np.stack(letters, axis=1)[mask].astype(np.uint8).tobytes().decode("ascii")
    ends = np.append(0, np.cumsum(mask.sum(1)))[np.append(0, np.cumsum(sizes))].tolist()
    return [text[begin:end] for begin, end in itertools.pairwise(ends)]


def _lengths(runs: Runs, num_pixels: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths from the picture's first pixel to its last, of one object after the other, and how many are of each."""
    before = np.append(0, runs.end[:-1])
    before[runs.first[:-1]] = 0
    inside = np.stack([runs.begin - before, runs.end - runs.begin], axis=1).ravel()
    tail = num_pixels - runs.end[runs.first[1:] - 1]
    has_tail = tail > 0
    return np.insert(inside, 2 * runs.first[1:][has_tail], tail[has_tail]), 2 * np.diff(runs.first) + has_tail


def expand_runs(text: str) -> list[int]:
    """The run lengths that a text spells: differences from the run before the last, five bits a character."""
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


def coco_image(image: CocoImage) -> tuple[dict[str, Any], str]:
    """The entry of one image, and its annotations, each a line of JSON; ``coco_document`` numbers both."""
    height, width = image.labels.shape
    entry = {"file_name": image.file_name, "width": width, "height": height}
    runs = label_runs(image.labels)
    lines = []
    if len(runs.label):
        areas = np.add.reduceat(runs.end - runs.begin, runs.first[:-1]).tolist()
        told = zip(runs.label.tolist(), compress_runs(runs, width * height), areas, _boxes(runs, height), strict=True)
        for label, text, area, box in told:
            score = _score(image.scores[label - 1]) if label <= len(image.scores) else "null"
            counts = text.replace("\\", "\\\\")  # of its characters the one that JSON has another use for
            lines.append(
                f'"category_id": 1, "segmentation": {{"size": [{height}, {width}], "counts": "{counts}"}}, '
                f'"area": {area}, "bbox": {box}, "iscrowd": 0, "score": {score}}}\n'
            )
    return entry if image.page is None else {**entry, "page": image.page}, "".join(lines)


def _score(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"a score of {value} is not JSON compliant")
    return repr(round(float(value), 6))


def _boxes(runs: Runs, height: int) -> list[list[int]]:
    """Left, top, width and height of each object."""
    first, last = runs.begin, runs.end - 1
    left, right = first // height, last // height
    # A run that goes on into the next column reaches the last row of one and the first of the other.
    over, begins = left != right, runs.first[:-1]
    top = np.minimum.reduceat(np.where(over, 0, first % height), begins)
    bottom = np.maximum.reduceat(np.where(over, height - 1, last % height), begins)
    left, right = np.minimum.reduceat(left, begins), np.maximum.reduceat(right, begins)
    boxes: list[list[int]] = np.stack([left, top, right - left + 1, bottom - top + 1], axis=1).tolist()
    return boxes


def coco_document(images: Iterable[tuple[Mapping[str, Any], str]], category: str) -> str:
    """A whole COCO file, of what ``coco_image`` gives for each; numbers are from 1."""
    entries: list[str] = []
    annotations: list[str] = []
    for number, (entry, lines) in enumerate(images, start=1):
        entries.append(json.dumps({"id": number, **entry}))
        begin = len(annotations) + 1
        annotations += [
            f'{{"id": {n}, "image_id": {number}, {line}' for n, line in enumerate(lines.splitlines(), start=begin)
        ]
    info = json.dumps({"description": "written by hotlap segment predict"})
    categories = json.dumps([{"id": 1, "name": category, "supercategory": ""}])
    parts = {"info": info, "images": _array(entries), "annotations": _array(annotations), "categories": categories}
    return "{" + ", ".join(f'"{name}": {text}' for name, text in parts.items()) + "}\n"


def _array(items: Sequence[str]) -> str:
    return "[" + ",\n".join(items) + "]"


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
