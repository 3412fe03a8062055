"""The learning rate over the steps: a pure function of the step, so that a resumed run has the same."""

from __future__ import annotations

import math
from typing import Any

import torch


class Schedule:
    """Sets the learning rates of an optimizer: a linear warm-up, then constant, cosine to zero, or by plateaus."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, kind: str, warmup: int, total: int) -> None:
        self._optimizer, self._kind, self._warmup, self._total = optimizer, kind, warmup, max(total, 1)
        self._base = [float(group["lr"]) for group in optimizer.param_groups]
        self.factor = 1.0
        """What plateaus have brought the rate down to."""
        self._stalled = 0

    def end_at(self, total: int) -> None:
        """A cosine now comes to zero at another step."""
        self._total = max(total, 1)

    def share(self, step: int) -> float:
        """The part of the full rate that step number ``step`` (from 0) uses."""
        if step < self._warmup:
            return (step + 1) / self._warmup
        if self._kind == "cosine":
            done = (step - self._warmup) / max(1, self._total - self._warmup)
            return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        return self.factor

    def apply(self, step: int) -> float:
        """Puts the rate of ``step`` in force; the first group's rate."""
        share = self.share(step)
        for group, base in zip(self._optimizer.param_groups, self._base, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(base * share)
            else:
                group["lr"] = base * share
        return self._base[0] * share

    def evaluated(self, *, better: bool, patience: int = 3) -> bool:
        """Hears of an evaluation; True when it lowered the rate."""
        self._stalled = 0 if better else self._stalled + 1
        if self._kind != "plateau" or self._stalled < patience:
            return False
        self.factor, self._stalled = self.factor / 10, 0
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"factor": self.factor, "stalled": self._stalled}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What plateaus did; the full rate itself is a setting, and a resumed run may have been given another."""
        self.factor, self._stalled = state["factor"], state["stalled"]
