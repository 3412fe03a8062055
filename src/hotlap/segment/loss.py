"""What a segmentation is trained on."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hotlap.segment.heads import BOUNDARY, CORE, FOREGROUND, HEADS

IGNORE = 255
"""The label of pixels that count neither in the loss nor in the scores."""


def pixel_cross_entropy(logits: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:  # [n, C, H, W], [n, H, W]
    """The cross-entropy summed over the labelled pixels, and how many there are; both stay on the device."""
    total = F.cross_entropy(logits, mask, reduction="sum", ignore_index=IGNORE)
    return total, (mask != IGNORE).sum()


EDGE_WEIGHT = 2.0
"""How much more a pixel at an object's edge counts than one far from all edges."""
REACH = 5
"""Side in pixels of the square around an object's pixel within which the background is near an edge."""


def cell_loss(
    scores: Tensor, maps: Tensor, names: tuple[str, ...] = HEADS["core"]
) -> tuple[Tensor, int]:  # [n, M, H, W] each
    """Cross-entropy, edges weighed more, plus 1 - Dice, summed over the images; and how many they are.

    Both are means over an image's pixels and maps, so that images count alike and a batch may be split. Maps lie in
    [0, 1], ``names`` says which they are.
    """
    scores = scores if scores.dtype == torch.float64 else scores.float()
    maps = maps.to(scores.dtype)
    weight = edge_weights(maps, names)
    entropy = F.binary_cross_entropy_with_logits(scores, maps, reduction="none")
    entropy = (entropy * weight).sum((1, 2, 3)) / (weight.sum((1, 2, 3)) * maps.shape[1])
    likely = torch.sigmoid(scores)
    both = (likely * maps).sum((2, 3))
    # Squares in place of values, so that a soft map is best met by itself and not by its rounding.
    each = likely.square().sum((2, 3)) + maps.square().sum((2, 3))
    dice = (2 * both + 1) / (each + 1)
    return (entropy + 1 - dice.mean(1)).sum(), len(scores)


def edge_weights(maps: Tensor, names: tuple[str, ...] = HEADS["core"]) -> Tensor:  # [n, M, H, W] -> [n, 1, H, W]
    """1 in the middle of objects and far from them, up to 1 + EDGE_WEIGHT between."""
    foreground = _one(maps, names, FOREGROUND)
    near = _widest(foreground)
    if CORE in names:
        inside = _one(maps, names, CORE)
    elif BOUNDARY in names:
        inside = foreground - _one(maps, names, BOUNDARY)
    else:
        inside = -_widest(-foreground)
    return 1 + EDGE_WEIGHT * near * (1 - inside)


def _one(maps: Tensor, names: tuple[str, ...], name: str) -> Tensor:  # [n, M, H, W] -> [n, 1, H, W]
    place = names.index(name)
    return maps[:, place : place + 1]


def _widest(foreground: Tensor) -> Tensor:
    return F.max_pool2d(foreground, REACH, stride=1, padding=REACH // 2)
