"""What a foreign trainer's run leaves behind: one record, as every other run does."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections import deque
from importlib import metadata
from typing import Any

import torch

from hotlap.base.format import format_count, format_rate, format_s
from hotlap.bridges.passes import BridgeConfig, log
from hotlap.device.memory import PeakMemory
from hotlap.engine.exact import ExactStep, StepResult
from hotlap.records.codec import encode
from hotlap.records.environment import capture
from hotlap.records.measurement import Measurement, Verdict
from hotlap.records.run import RunRecord, begin, now, run_folder, save

KEPT = 1000
"""Intervals that the record holds: those of the last steps."""


class Journey:
    """Follows one training and writes its record, at its begin and at its end."""

    def __init__(self, config: BridgeConfig, model: str, package: str, device: torch.device) -> None:
        name = config.name or model.lower()
        self._folder = run_folder(config.runs, name)
        self._trainer = f"{package} {metadata.version(package)}"
        self._record = save(begin("train", name, config, {}, capture()), self._folder)
        self._memory = PeakMemory(device)
        self._last: float | None = None
        self._samples, self._intervals = deque[int](maxlen=KEPT), deque[float](maxlen=KEPT)
        self.num_batches, self.num_samples = 0, 0
        self.num_splits, self.recovery_s = 0, 0.0
        self.notes: list[str] = []

    @property
    def record(self) -> RunRecord:
        return self._record

    def say(self, text: str) -> None:
        """Tells the user once, and the record."""
        if text not in self.notes:
            self.notes.append(text)
            log.warning(text)

    def add(self, result: StepResult) -> None:
        """Counts one batch. The time is from the end of one to the end of the next, loading included."""
        moment = time.perf_counter()
        if self._last is not None:
            self._intervals.append(moment - self._last)
            self._samples.append(result.num_samples)
        self._last = moment
        self.num_batches += 1
        self.num_samples += result.num_samples
        self.num_splits += result.num_splits
        self.recovery_s = max(self.recovery_s, result.recovery_s)

    def samples_per_s(self) -> float | None:
        """Of the middle batch: start-up, evaluations and checkpoints hardly show."""
        rates = [num / seconds for num, seconds in zip(self._samples, self._intervals, strict=True)]
        return statistics.median(rates) if rates else None

    def finish(
        self, status: str, exact: ExactStep, *, step: int, epoch: int, metrics: dict[str, float], why: str = ""
    ) -> RunRecord:
        """Writes the end of the training; ``step`` counts those of the optimizer, ``why`` says what stopped it."""
        outcome = {
            "status": status,
            "step": step,
            "epoch": epoch,
            "metrics": {name: value for name, value in metrics.items() if math.isfinite(value)},
            "samples_per_s": self.samples_per_s(),
            "num_batches": self.num_batches,
            "num_samples": self.num_samples,
            "micro": exact.micro,
            "num_splits": self.num_splits,
            "recovery_s": self.recovery_s,
            "recomputing": exact.recomputing,
        }
        interval = Measurement(quantity="interval", unit="s", arm="train", process=0, values=list(self._intervals))
        self._record = save(
            dataclasses.replace(
                self._record,
                status=status,
                finished_at=now(),
                measurements=[interval],
                extra={"outcome": outcome, "memory": encode(self._memory.read()), "trainer": self._trainer},
                notes=[*self.notes, *([why] if why else [])],
                verdict=_verdict(outcome),
            ),
            self._folder,
        )
        return self._record


def _verdict(outcome: dict[str, Any]) -> Verdict:
    complete = outcome["status"] == "complete"
    words = [f"{outcome['step']} steps"]
    if outcome["samples_per_s"] is not None:
        words.append(format_rate(outcome["samples_per_s"]))
    if outcome["num_splits"]:
        times = format_count(outcome["num_splits"], "time")
        words.append(f"memory ran out {times}, no step was lost ({format_s(outcome['recovery_s'])} at most)")
    headline = ("trained " if complete else f"{outcome['status']} after ") + "; ".join(words)
    return Verdict(outcome=outcome["status"], headline=headline, exit_code=0 if complete else 1)
