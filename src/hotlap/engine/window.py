"""What the steps since the last row of metrics add up to."""

from __future__ import annotations

import time
from typing import Any

import torch

from hotlap.engine.exact import StepResult


class Window:
    """Steps since the last row of metrics."""

    def __init__(self, num_processes: int = 1) -> None:
        self._num_processes = num_processes  # which all do as many samples, give or take one
        self.rate = 0.0
        self._rates: list[float] = []
        self.clear()

    def clear(self) -> None:
        self._losses: list[torch.Tensor] = []
        self._norm: torch.Tensor | None = None
        self._num_samples, self._micro, self._num_steps = 0, 0, 0
        self._began = time.perf_counter()

    def add(self, result: StepResult) -> None:
        self._losses.append(result.loss)
        self._norm, self._micro = result.grad_norm, result.micro
        self._num_samples += result.num_samples * self._num_processes
        self._num_steps += 1

    def state_dict(self) -> dict[str, Any]:
        """The losses of a row that is not written yet; a resumed run writes the same row."""
        return {"losses": [float(loss) for loss in self._losses], "micro": self._micro}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._losses = [torch.tensor(loss) for loss in state["losses"]]
        self._micro = state["micro"]

    def values(self) -> dict[str, float] | None:
        """What happened in the window; None when nothing did. Waits for the device."""
        if not self._losses:
            return None
        losses = [loss.double().cpu() for loss in self._losses]
        found = {"loss": float(torch.stack(losses).mean()), "micro": float(self._micro)}
        if self._norm is not None:
            found["grad_norm"] = float(self._norm)
        seconds = time.perf_counter() - self._began
        self._rates.append(self._num_samples / seconds)
        seconds_a_step = seconds / max(1, self._num_steps)
        return {**found, "samples_per_s": self._rates[-1], "seconds_a_step": seconds_a_step}

    def mean_rate(self) -> float | None:
        """Samples a second in the middle window: start-up, evaluations and checkpoints hardly show."""
        return sorted(self._rates)[len(self._rates) // 2] if self._rates else None
