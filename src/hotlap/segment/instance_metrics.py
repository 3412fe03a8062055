"""How well found objects are the true ones: matched by overlap, counted at ten demands.

"AP" is that of the Data Science Bowl, StarDist and Cellpose: TP / (TP + FP + FN) of one picture at one least IoU, then
averaged over pictures. It is not COCO's, which ranks by confidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotlap.base.errors import ShapeError

THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
"""The least IoU of a match: 0.5, 0.55 ... 0.95."""
FIRST = THRESHOLDS[0]

Labels = np.ndarray[Any, np.dtype[Any]]
Numbers = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Overlaps:
    """The pairs of a true and a found object that share a pixel, and all areas."""

    truth: Numbers  # [P] position of the true object among all true ones
    found: Numbers  # [P]
    iou: Numbers  # [P]
    num_truths: int
    num_found: int
    shared_px: int
    """Pixels that belong to some object on both sides."""
    object_px: int
    """Pixels of the true objects plus those of the found ones."""


@dataclass(frozen=True)
class Matched:
    """The matches of one picture, or of many, at one least IoU."""

    tp: int
    fp: int
    fn: int
    iou_sum: float

    @property
    def ap(self) -> float:
        """TP / (TP + FP + FN); 1 where there was nothing to find and nothing was found."""
        return _ratio(self.tp, self.tp + self.fp + self.fn)

    @property
    def f1(self) -> float:
        return _ratio(2 * self.tp, 2 * self.tp + self.fp + self.fn)

    @property
    def pq(self) -> float:
        """Panoptic quality: the matches' mean IoU times F1."""
        return _ratio(self.iou_sum, self.tp + 0.5 * (self.fp + self.fn))


@dataclass(frozen=True)
class ImageScores:
    """The scores of one picture."""

    at: dict[float, Matched]
    num_truths: int
    num_found: int
    shared_px: int
    object_px: int

    @property
    def mean_ap(self) -> float:
        return float(np.mean([matched.ap for matched in self.at.values()]))

    @property
    def dice(self) -> float:
        return _ratio(2 * self.shared_px, self.object_px)

    def row(self) -> dict[str, float]:
        """The figures of a table's row."""
        first = self.at[FIRST]
        return {
            "ap50": first.ap,
            "map": self.mean_ap,
            "f1": first.f1,
            "pq": first.pq,
            "dice": self.dice,
            "truths": self.num_truths,
            "found": self.num_found,
            "missed": first.fn,
            "wrong": first.fp,
        }


def score_image(truth: Labels, found: Labels) -> ImageScores:  # [H, W] each, 0 is background
    """How well one picture's found objects are its true ones."""
    pairs = overlaps(truth, found)
    at = {threshold: match(pairs, threshold) for threshold in THRESHOLDS}
    return ImageScores(at, pairs.num_truths, pairs.num_found, pairs.shared_px, pairs.object_px)


def summarise(images: Sequence[ImageScores]) -> dict[str, float]:
    """The scores of a data set: AP at each demand and Dice averaged over pictures; F1 and PQ over all objects."""
    scores = {"ap50": 0.0, "map": 0.0}
    for threshold in THRESHOLDS:
        aps = [image.at[threshold].ap for image in images]
        scores[f"ap{round(100 * threshold)}"] = float(np.mean(aps)) if aps else 0.0
    scores["map"] = float(np.mean([image.mean_ap for image in images])) if images else 0.0
    first = [image.at[FIRST] for image in images]
    total = Matched(
        sum(m.tp for m in first), sum(m.fp for m in first), sum(m.fn for m in first), sum(m.iou_sum for m in first)
    )
    scores |= {"f1": total.f1, "pq": total.pq}
    scores["dice"] = float(np.mean([image.dice for image in images])) if images else 0.0
    return scores


def overlaps(truth: Labels, found: Labels) -> Overlaps:
    """Which true and found objects meet, from one count over the pixels."""
    if truth.shape != found.shape:
        raise ShapeError(f"found objects are {list(found.shape)}", expected=f"the truth's size, {list(truth.shape)}")
    true_values, true_at = np.unique(truth, return_inverse=True)
    found_values, found_at = np.unique(found, return_inverse=True)
    true_areas, found_areas = np.bincount(true_at.ravel()), np.bincount(found_at.ravel())
    is_true, is_found = true_values != 0, found_values != 0
    # Only pairs that meet: a table of all would be gigabytes for a slide with tens of thousands of nuclei.
    pairs, both = np.unique((true_at * len(found_values) + found_at)[(truth != 0) & (found != 0)], return_counts=True)
    rows, columns = pairs // len(found_values), pairs % len(found_values)
    return Overlaps(
        truth=(np.cumsum(is_true) - 1)[rows],
        found=(np.cumsum(is_found) - 1)[columns],
        iou=both / (true_areas[rows] + found_areas[columns] - both),
        num_truths=int(is_true.sum()),
        num_found=int(is_found.sum()),
        shared_px=int(both.sum()),
        object_px=int(true_areas[is_true].sum() + found_areas[is_found].sum()),
    )


def match(pairs: Overlaps, threshold: float) -> Matched:
    """One partner at most for each object, as many pairs as possible with at least this IoU."""
    keep = pairs.iou >= threshold
    rows, columns, iou = pairs.truth[keep], pairs.found[keep], pairs.iou[keep]
    # Above one half no object can have two partners; at one half and below it can.
    if len(np.unique(rows)) < len(rows) or len(np.unique(columns)) < len(columns):
        chosen = _assign(rows, columns, iou)
        rows, columns, iou = rows[chosen], columns[chosen], iou[chosen]
    return Matched(len(rows), pairs.num_found - len(rows), pairs.num_truths - len(rows), float(iou.sum()))


def _assign(rows: Numbers, columns: Numbers, iou: Numbers) -> Numbers:
    """Which of the pairs to keep: the most of them, and among those the ones that overlap most."""
    from scipy.optimize import linear_sum_assignment

    _, row_at = np.unique(rows, return_inverse=True)
    _, column_at = np.unique(columns, return_inverse=True)
    worth = np.zeros((row_at.max() + 1, column_at.max() + 1))
    number = np.full(worth.shape, -1)
    # A further pair always outweighs better ones: all overlaps together weigh less than one pair.
    worth[row_at, column_at] = len(rows) + iou
    number[row_at, column_at] = np.arange(len(rows))
    picked = number[linear_sum_assignment(worth, maximize=True)]
    return picked[picked >= 0]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 1.0
