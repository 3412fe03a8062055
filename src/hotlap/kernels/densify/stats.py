"""What densification keeps of each splat, and what it plans to do with them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

KEPT, COPY, CHILD_A, CHILD_B = range(4)
"""What a row of the next model is: the splat itself, a clone's copy, one of the two that replace a split splat."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Stats:
    """Sums over the steps since they were last cleared; changed in place."""

    grad: Tensor
    """[N] float32 lengths of the screen-space gradient, summed over the cameras that saw the splat."""
    count: Tensor
    """[N] int32 how many did."""
    max_radius: Tensor
    """[N] float32 the largest extent on a screen, as a share of the screen's longer side."""
    visible: Tensor
    """[N] bool whether a camera of the last step saw the splat: what the optimizer asks for."""

    def clear(self) -> None:
        """Starts anew."""
        for tensor in (self.grad, self.count, self.max_radius, self.visible):
            tensor.zero_()


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """Where each row of the next model comes from. Rows keep their order, and copies follow what they were made of."""

    source: Tensor
    """[M] int32 row of the present model; -1 behind the last."""
    kind: Tensor
    """[M] uint8 ``KEPT``, ``COPY``, ``CHILD_A`` or ``CHILD_B``."""
    count: Tensor
    """[] int32 rows of the next model; above M if the plan did not fit."""


def make_stats(num_splats: int, device: torch.device | str = "cpu") -> Stats:
    """Statistics before the first step."""
    return Stats(
        grad=torch.zeros(num_splats, device=device),
        count=torch.zeros(num_splats, dtype=torch.int32, device=device),
        max_radius=torch.zeros(num_splats, device=device),
        visible=torch.zeros(num_splats, dtype=torch.bool, device=device),
    )


def make_plan(capacity: int, device: torch.device) -> Plan:
    """Memory for a plan of so many rows."""
    return Plan(
        source=torch.empty(capacity, dtype=torch.int32, device=device),
        kind=torch.empty(capacity, dtype=torch.uint8, device=device),
        count=torch.empty((), dtype=torch.int32, device=device),
    )
