"""What the micro-batches of a step add up to, and what their gradients are scaled by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(kw_only=True)
class Sums:
    """Loss and count so far, and the provisional divisor that keeps gradients in range."""

    num_micro: int
    largest: int
    """Samples of the largest micro-batch."""
    loss: Any = 0.0
    """Of several parts in float64: the mean of many is as good as that of one."""
    dtype: torch.dtype = torch.float32
    """Of the loss function's own sums."""
    count: Any = 0
    divisor: Any = None
    mean: Tensor | None = None
    """Loss over divisor of the last part: the mean of a step that is not split."""

    def add(self, loss: Tensor, count: Tensor | int) -> None:
        if isinstance(self.loss, Tensor):
            self.loss, self.count = self.loss.double() + loss.double(), self.count + count
        else:
            self.loss, self.count = loss, count
        self.dtype = loss.dtype


def not_zero(count: Any) -> Any:
    """A count to divide by: a batch whose every target is masked gives gradient zero, not NaN."""
    return torch.where(count == 0, 1, count) if isinstance(count, Tensor) else count or 1


def power_of_two(count: float) -> float:
    """A number of about this size to divide by without rounding, so that gradients do not depend on which one it is."""
    return 2.0 ** round(math.log2(max(1.0, count)))


@torch.no_grad()
def scale_gradients(parameters: Sequence[nn.Parameter], factor: Tensor) -> None:
    """Multiplies every gradient by ``factor``, in place; of sharded ones this process's part."""
    gradients = [local_part(p.grad) for p in parameters if p.grad is not None]
    for dtype in dict.fromkeys(g.dtype for g in gradients):
        same = [g for g in gradients if g.dtype == dtype]
        if dtype.itemsize >= 4:
            torch._foreach_mul_(same, factor.to(dtype))
            continue
        for gradient in same:  # a factor of that precision would be wrong in its third digit
            gradient.copy_(gradient.float() * factor.float())


def local_part(tensor: Tensor) -> Tensor:
    """The part of a tensor that is in this process: of a plain one, all of it."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
