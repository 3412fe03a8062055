"""Every tensor that a model returns, judged by itself: predict() shows the gate one, and users take the others, too."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hotlap.base.errors import TargetError
from hotlap.measure.arms import ArmSpec
from hotlap.measure.capture import capture
from hotlap.measure.gate import PLAIN, GateKeeper
from hotlap.measure.session import Session
from hotlap.records.measurement import Gate
from hotlap.targets import real_numbers
from hotlap.workload import Batch, Workload


@dataclasses.dataclass(frozen=True)
class Other:
    """One more output of a model, with a gate of its own."""

    name: str
    is_whole: bool
    """Whole numbers, as classes are."""
    keeper: GateKeeper


def other_outputs(workload: Workload, *, batch: int, seed: int, kept: Path | None = None, **how: Any) -> list[Other]:
    """The tensors that the model returns beside the one that ``predict`` gives on.

    What is not finite in plain float32 either, as a mask of -inf, cannot be compared, nor can what is no tensor.
    """
    session = Session(workload, PLAIN, mode="infer", batch=batch, seed=seed)
    try:
        call = capture(workload, session.model, session.batches[0])
    except TargetError:
        return []
    how |= {"mode": "infer", "batch": batch, "steps": 1, "seed": seed}
    found = []
    for place, (name, tensor) in enumerate(zip(call.output_names(), call.outputs, strict=True)):
        if place != call.predicted and bool(tensor.isfinite().all()):
            keeper = GateKeeper(_OneOutput(workload, place), kept=kept / name if kept else None, **how)
            found.append(Other(name, not real_numbers(tensor).is_floating_point(), keeper))
    return found


def judge_every(keeper: GateKeeper, others: Sequence[Other], spec: ArmSpec) -> Gate:
    """The gate of an arm, with checks of the other outputs under their names.

    Whole numbers are left out in a short format, for the classes that they stand for may be ties.
    """
    gate = keeper.judge(spec)
    checks, seconds = list(gate.checks), gate.seconds
    for other in others:
        if other.is_whole and spec.precision != "fp32":
            continue
        found = other.keeper.judge(spec)
        names = [other.name if check.name == "outputs" else f"{other.name}: {check.name}" for check in found.checks]
        checks += [dataclasses.replace(check, name=name) for check, name in zip(found.checks, names, strict=True)]
        seconds += found.seconds
    return dataclasses.replace(gate, checks=checks, passed=all(check.passed for check in checks), seconds=seconds)


class _OneOutput(Workload):
    """A workload whose prediction is one of the tensors that its model returns."""

    def __init__(self, workload: Workload, place: int) -> None:
        self.name, self._workload, self._place = workload.name, workload, place

    def build_model(self) -> nn.Module:
        return self._workload.build_model()

    def make_batch(self, n: int, device: torch.device, generator: torch.Generator) -> Batch:
        return self._workload.make_batch(n, device, generator)

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        return real_numbers(capture(self._workload, model, batch).outputs[self._place])
