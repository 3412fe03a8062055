"""Scores of a classifier from its confusion matrix: what is counted once over all samples, pixels or tokens."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def confusion_counts(predicted: Tensor, target: Tensor, classes: int, *, ignore: int | None = None) -> Tensor:
    """How often each class (row) was taken for each class (column): [classes, classes] int64.

    Targets equal to ``ignore`` are not counted. Nothing waits for the device.
    """
    predicted, target = predicted.reshape(-1), target.reshape(-1)
    counted = torch.ones_like(target) if ignore is None else (target != ignore).long()
    cell = target * counted * classes + predicted
    counts = torch.zeros(classes * classes, dtype=torch.int64, device=target.device)
    return counts.index_add_(0, cell, counted).view(classes, classes)


def total_confusion(pairs: Iterable[tuple[Tensor, Tensor]], classes: int, *, ignore: int | None = None) -> Tensor:
    """The counts over many (predicted, target) pairs, on the CPU: [classes, classes] int64."""
    total: Tensor | None = None
    for predicted, target in pairs:
        counts = confusion_counts(predicted, target, classes, ignore=ignore)
        total = counts if total is None else total + counts
    return torch.zeros(classes, classes, dtype=torch.int64) if total is None else total.cpu()


def dice_per_class(confusion: Tensor) -> Tensor:  # [C, C] -> [C] float64
    """Twice the hits over all that was predicted plus all that was there: Dice, which is also F1.

    NaN for a class that neither occurs nor is predicted: there is nothing to score.
    """
    hits, predicted, present = _margins(confusion)
    return 2 * hits / (predicted + present)


def iou_per_class(confusion: Tensor) -> Tensor:  # [C, C] -> [C] float64
    """The hits over what was predicted or there; NaN for a class that neither occurs nor is predicted."""
    hits, predicted, present = _margins(confusion)
    return hits / (predicted + present - hits)


def mean_over_present(scores: Tensor) -> float:
    """The mean of the classes that have a score; NaN when none has."""
    return scores.nanmean().item()


def accuracy(confusion: Tensor) -> float:
    """The share of samples whose class was found; NaN when there are none."""
    return (confusion.diagonal().sum().double() / confusion.sum().double()).item()


def _margins(confusion: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    counts = confusion.double()
    return counts.diagonal(), counts.sum(0), counts.sum(1)
