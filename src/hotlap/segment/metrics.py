"""How good a segmentation is."""

from __future__ import annotations

from torch import Tensor

from hotlap.measure.confusion import (
    accuracy,
    confusion_counts,
    dice_per_class,
    iou_per_class,
    mean_over_present,
)
from hotlap.segment.loss import IGNORE
from hotlap.workload import Agreement, decided


def segmentation_scores(confusion: Tensor) -> dict[str, float]:  # [C, C] over all pixels of a data set
    """Mean Dice and IoU, pixel accuracy, and Dice and IoU of each class.

    A class that neither occurs nor is predicted has no score: it is left out, of the means too.
    """
    dice, iou = dice_per_class(confusion), iou_per_class(confusion)
    scores = {
        "dice": mean_over_present(dice),
        "iou": mean_over_present(iou),
        "pixel_accuracy": accuracy(confusion),
    }
    for number, (d, i) in enumerate(zip(dice.tolist(), iou.tolist(), strict=True)):
        if d == d:
            scores[f"dice_{number}"] = d
            scores[f"iou_{number}"] = i
    return scores


def mask_agreement(out: Tensor, ref: Tensor) -> list[Agreement]:  # [n, C, H, W] each
    """The mean IoU of the two outputs' masks over the pixels where the reference, taken as the truth, is decided."""
    clear = decided(ref)
    if not bool(clear.any()):
        return []
    truth = ref.argmax(1).masked_fill(~clear, IGNORE)
    confusion = confusion_counts(out.argmax(1), truth, ref.shape[1], ignore=IGNORE)
    return [Agreement(name="mask IoU", value=mean_over_present(iou_per_class(confusion)), at_least=0.99)]


SAME_MASK = 0.995
"""The least IoU of a faster network's masks with those of the exact one."""
CLEAR = 0.25
"""The share of its map's typical score from which a fresh network's score is a decision: 60 layers of norms that
bfloat16 rounds between move it by 0.05 to 0.1 of that."""


def map_agreement(out: Tensor, ref: Tensor, clear: float = CLEAR) -> list[Agreement]:  # [n, M, H, W] each
    """The IoU of the two outputs' masks, all maps together, where the reference decides clearly.

    A score's sign decides; near 0, compared with its map's typical score, rounding may turn it. Judge trained weights
    by ``clear=0``, which counts every pixel.
    """
    decides = ref.abs() > clear * ref.square().mean((2, 3), keepdim=True).sqrt()
    mine, true = (out > 0) & decides, (ref > 0) & decides
    union = int((mine | true).sum())
    if union == 0:
        return []
    return [Agreement(name="mask IoU", value=int((mine & true).sum()) / union, at_least=SAME_MASK)]
