"""How good an image classifier is."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from hotlap.measure.confusion import accuracy, confusion_counts, dice_per_class, mean_over_present

TOP = 5


def image_scores(answers: Iterable[tuple[Tensor, Tensor]], classes: int) -> dict[str, float]:
    """Accuracy, macro-F1 and, of more than five classes, top-5 accuracy, from (logits [n, C], labels [n]).

    Macro-F1 is the mean over the classes that occur or are predicted; top-5 counts an image whose class is among the
    five best. All are NaN without images.
    """
    confusion = torch.zeros(classes, classes, dtype=torch.int64)
    among_best = torch.zeros((), dtype=torch.int64)
    for logits, labels in answers:
        confusion = confusion.to(labels.device) + confusion_counts(logits.argmax(1), labels, classes)
        if classes > TOP:
            best = logits.topk(TOP, dim=1).indices
            among_best = among_best.to(labels.device) + (best == labels[:, None]).sum()
    confusion = confusion.cpu()
    scores = {"accuracy": accuracy(confusion), "macro_f1": mean_over_present(dice_per_class(confusion))}
    if classes > TOP:
        scores["top5"] = (among_best.cpu().double() / confusion.sum()).item()
    return scores
