"""What the micro-batches of a step add up to, and what their gradients are scaled by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Sums:
    """Loss and count so far, and the provisional divisor that keeps gradients in range."""

    loss: Tensor
    count: Any
    num_micro: int
    divisor: Any = None


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def at_least_one(count: Any) -> Any:
    """A count to divide by: a batch whose every target is masked gives gradient zero, not NaN."""
    return count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)


@torch.no_grad()
def scale_gradients(parameters: Sequence[nn.Parameter], factor: Tensor) -> None:
    """Multiplies every gradient by ``factor``, in place; of sharded ones this process's part."""
    gradients = [local_part(p.grad) for p in parameters if p.grad is not None]
    for dtype in dict.fromkeys(g.dtype for g in gradients):
        same = [g for g in gradients if g.dtype == dtype]
        torch._foreach_mul_(same, factor.to(dtype))


def local_part(tensor: Tensor) -> Tensor:
    """The part of a tensor that is in this process: of a plain one, all of it."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
