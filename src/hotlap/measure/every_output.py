"""Every tensor that a model returns, judged by itself: predict() shows the gate one, a file for production has all."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from hotlap.measure.arms import ArmSpec
from hotlap.measure.capture import Call, capture
from hotlap.measure.distances import relative_error
from hotlap.measure.gate import ERROR_FACTOR, OUTPUT_SHARE, PLAIN, GateKeeper
from hotlap.measure.session import Session, as_double
from hotlap.records.measurement import GateCheck
from hotlap.workload import Batch, Workload


def output_checks(workload: Workload, spec: ArmSpec, *, batch: int, seed: int, file: Path) -> list[GateCheck]:
    """A check of each tensor that the form in ``file`` returns, but of the one that ``predict`` has shown to the gate.

    What is not finite in plain float32 either, as a mask of -inf, cannot be compared. Nor can whole numbers in a short
    format, for the classes that they stand for may be ties.
    """
    call = partial(_call, workload, batch=batch, seed=seed)
    plain = call(PLAIN)
    if plain.predicted is not None and len(plain.outputs) == 1:
        return []
    truth, got = call(PLAIN, double=True), call(spec, file=file)
    checks = []
    for place, name in enumerate(plain.output_names()):
        own = plain.outputs[place]
        if place == plain.predicted or not bool(own.isfinite().all()):
            continue
        if not (own.is_floating_point() or spec.precision == "fp32"):
            continue
        error, of_plain = (_error(side.outputs[place], truth.outputs[place]) for side in (got, plain))
        allowed = ERROR_FACTOR[spec.precision] * of_plain + OUTPUT_SHARE[spec.precision]
        if error <= allowed:
            checks.append(GateCheck(name=name, error=error, allowed=allowed, passed=True))
            continue
        one = _OneOutput(workload, place)  # the gate also knows how far rounding moves it
        keeper = GateKeeper(one, mode="infer", batch=batch, steps=1, seed=seed, files={spec.name: file})
        checks += [dataclasses.replace(check, name=name) for check in keeper.judge(spec).checks]
    return checks


def _call(
    workload: Workload, spec: ArmSpec, *, batch: int, seed: int, file: Path | None = None, double: bool = False
) -> Call:
    session = Session(workload, spec, mode="infer", batch=batch, seed=seed, file=file)
    if double:
        session.plain_model.double()
        session.batches[0] = as_double(session.batches[0])
    return capture(workload, session.model, session.batches[0])


def _error(out: Tensor, truth: Tensor) -> float:
    return relative_error(out.double().cpu(), truth.double().cpu())


class _OneOutput(Workload):
    """A workload whose prediction is one of the tensors that its model returns."""

    def __init__(self, workload: Workload, place: int) -> None:
        self.name, self._workload, self._place = workload.name, workload, place

    def build_model(self) -> nn.Module:
        return self._workload.build_model()

    def make_batch(self, n: int, device: torch.device, generator: torch.Generator) -> Batch:
        return self._workload.make_batch(n, device, generator)

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        return capture(self._workload, model, batch).outputs[self._place]
