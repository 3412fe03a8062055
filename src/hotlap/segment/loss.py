"""What a segmentation is trained on."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

IGNORE = 255
"""The label of pixels that count neither in the loss nor in the scores."""


def pixel_cross_entropy(logits: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:  # [n, C, H, W], [n, H, W]
    """The cross-entropy summed over the labelled pixels, and how many there are; both stay on the device."""
    total = F.cross_entropy(logits, mask, reduction="sum", ignore_index=IGNORE)
    return total, (mask != IGNORE).sum()
