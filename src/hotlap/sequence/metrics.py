"""How good a text classifier is."""

from __future__ import annotations

from torch import Tensor

from hotlap.measure.confusion import accuracy, dice_per_class, mean_over_present


def text_scores(confusion: Tensor) -> dict[str, float]:  # [C, C] over all texts of a data set
    """Accuracy and macro-F1: the mean F1 of the classes that occur or are predicted."""
    return {"accuracy": accuracy(confusion), "macro_f1": mean_over_present(dice_per_class(confusion))}
