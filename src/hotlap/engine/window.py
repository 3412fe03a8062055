"""What happened in the steps since the last row of metrics."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Any

import torch

from hotlap.engine.step_result import StepResult


class Window:
    """Losses and speed of the last few steps; nothing in it waits for the device until its values are asked for."""

    def __init__(self, num_processes: int = 1) -> None:
        self._num_processes = num_processes  # which all do as many samples, give or take one
        self.rate = 0.0
        """The learning rate of the last step."""
        self._rates: list[float] = []
        self.clear()

    def clear(self) -> None:
        self._losses: list[torch.Tensor] = []
        self._read: list[float] = []
        self._norm: torch.Tensor | None = None
        self._num_samples, self._num_steps = 0, 0
        self.clear_clock()

    def clear_clock(self) -> None:
        """Begins to count time now; losses of a resumed window stay."""
        self._began = time.perf_counter()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What is done inside, such as an evaluation, does not count as training time."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._began += time.perf_counter() - start

    def add(self, result: StepResult) -> None:
        self._losses.append(result.loss)
        self._norm = result.grad_norm
        self._num_samples += result.num_samples * self._num_processes
        self._num_steps += 1

    def state_dict(self) -> dict[str, Any]:
        """The losses of a row that is not written yet; a resumed run writes the same row."""
        norm = None if self._norm is None else float(self._norm)
        return {"losses": self.losses(), "norm": norm}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._losses = [torch.tensor(loss, dtype=torch.float64) for loss in state["losses"]]
        self._read = []
        self._norm = None if state["norm"] is None else torch.tensor(state["norm"], dtype=torch.float64)

    def losses(self) -> list[float]:
        """The steps' losses in order; waits for the device, once for all of them."""
        new = self._losses[len(self._read) :]
        if len({(loss.device, loss.dtype) for loss in new}) == 1:
            self._read += torch.stack(new).tolist()
        else:
            self._read += [float(loss) for loss in new]
        return list(self._read)

    def values(self) -> dict[str, float] | None:
        """What happened in the window; None when nothing did."""
        losses = self.losses()
        if not losses:
            return None
        finite = [loss for loss in losses if math.isfinite(loss)] or [math.nan]
        found = {"loss": math.fsum(finite) / len(finite)}
        if self._norm is not None:
            found["grad_norm"] = float(self._norm)
        seconds = max(time.perf_counter() - self._began, 1e-9)
        found["samples_per_s"] = self._num_samples / seconds
        found["seconds_a_step"] = seconds / max(1, self._num_steps)
        if self._num_samples:
            self._rates.append(found["samples_per_s"])
        return found

    def mean_rate(self) -> float | None:
        """Samples a second in the middle one of all windows: start-up and compilation hardly show."""
        return sorted(self._rates)[len(self._rates) // 2] if self._rates else None
