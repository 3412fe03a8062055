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
    """Of a step that is not split."""

    def add(self, loss: Tensor, count: Tensor | int) -> None:
        if isinstance(self.loss, Tensor):
            self.loss, self.count = self.loss.double() + loss.double(), self.count + count
        else:
            self.loss, self.count = loss, count
        self.dtype = loss.dtype


class BackwardSeed:
    """The gradient of the mean with respect to the sum: what autograd would begin with, kept while it is the same.

    To divide first and to go back through the division takes three operations. This takes none where the count is a
    number that does not change, and one elsewhere.
    """

    def __init__(self) -> None:
        self._one: Tensor | None = None
        self._divisor: Any = None
        self._seed: Tensor | None = None

    def __call__(self, loss: Tensor, mean: Tensor, divisor: Any) -> Tensor:  # all of shape []
        """1 / ``divisor``, to the last bit as the backward pass of ``mean = loss / divisor`` has it."""
        one = self._one
        if one is None or one.dtype != mean.dtype or one.device != mean.device:
            self._one = one = torch.ones_like(mean)
            self._seed = None
        if isinstance(divisor, Tensor):
            return (one / divisor).to(loss.dtype)
        if self._seed is None or self._divisor != divisor or self._seed.dtype != loss.dtype:
            self._divisor, self._seed = divisor, (one / divisor).to(loss.dtype)
        return self._seed


def not_zero(count: Any) -> Any:
    """A count to divide by: a batch whose every target is masked gives gradient zero, not NaN."""
    if not isinstance(count, Tensor):
        return count or 1
    # Whole numbers are 0 or at least 1, and one operation does; a weighted count may lie between.
    is_whole = not count.is_floating_point() and count.dtype != torch.bool
    return count.clamp(min=1) if is_whole else torch.where(count == 0, 1, count)


def power_of_two(count: float) -> float:
    """A number of about this size to divide by without rounding, so that gradients do not depend on which one it is."""
    return 2.0 ** round(math.log2(max(1.0, count)))


def drop_gradients(optimizer: torch.optim.Optimizer) -> None:
    """What ``zero_grad`` does, without its marks for a profiler, which take longer than all that a step remembers.

    An optimizer with a ``zero_grad`` of its own, such as one that stands for another trainer's, is asked.
    """
    if type(optimizer).zero_grad is not torch.optim.Optimizer.zero_grad or "zero_grad" in optimizer.__dict__:
        optimizer.zero_grad(set_to_none=True)
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


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
