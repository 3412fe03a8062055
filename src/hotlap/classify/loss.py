"""What an image classifier is trained on."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def image_cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, int]:  # [n, C], [n]
    """The cross-entropy summed over the images, and how many there are."""
    return F.cross_entropy(logits, labels, reduction="sum"), len(labels)
