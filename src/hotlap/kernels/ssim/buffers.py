"""The memory that comparing two pictures needs: kept by the caller, one step after another allocates nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Buffers:
    """Where the results go, and room for what lies between the passes."""

    loss: Tensor
    """[] the loss."""
    grad: Tensor
    """[B, H, W, C] its gradient by the image; empty: not wanted."""
    slopes: Tensor
    """[3, B, H, W, C] the derivatives of SSIM by the means in its windows."""
    sums: Tensor
    """[blocks, 2] L1 and SSIM, summed by each block."""


def result_type(dtype: torch.dtype) -> torch.dtype:
    """Of the loss and its gradient: float64 for float64, and float32 for all others.

    A gradient of a mean over millions of numbers would be nothing in float16.
    """
    return torch.float64 if dtype == torch.float64 else torch.float32


def allocate(image: Tensor, num_sums: int, with_grad: bool = True) -> Buffers:
    """Fresh memory for images of this shape."""
    kind = result_type(image.dtype)
    shape = list(image.shape) if with_grad else [0]
    return Buffers(
        loss=image.new_empty([], dtype=kind),
        grad=image.new_empty(shape, dtype=kind),
        slopes=image.new_empty([3, *shape], dtype=kind),
        sums=image.new_empty([num_sums, 2], dtype=kind),
    )
