"""Two jobs of a measuring process: make one form of a model, and, in another process, read it back and judge it."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hotlap.device.seed import generator
from hotlap.measure.arms import ArmSpec, parse_arm
from hotlap.measure.capture import Call, FlatModel, capture, with_dynamic_batch
from hotlap.measure.deploy_files import Made, Reloaded, TensorInfo, file_info
from hotlap.measure.deployed import PRECISIONS, load_form, make_form, require
from hotlap.measure.every_output import judge_every, other_outputs
from hotlap.measure.gate import GateKeeper
from hotlap.measure.jobs import workload_of
from hotlap.measure.numbers_kept import numbers_kept
from hotlap.measure.process import Listen
from hotlap.measure.session import Session
from hotlap.records.measurement import Gate
from hotlap.workload import Workload

SMALLEST_TRACED = 2
"""The compiler takes a size of 1 for a constant."""


def make(job: dict[str, Any], listen: Listen) -> Made:
    """The job: writes the form of ``arm`` at ``batch`` into ``folder``; with ``dynamic``, for any batch."""
    spec, folder = parse_arm(job["arm"]), Path(job["folder"])
    listen(f"making {spec.form}", 0, 1)
    require(spec)
    workload = workload_of(job)
    batch = max(job["batch"], SMALLEST_TRACED) if job["dynamic"] else job["batch"]
    began = time.perf_counter()
    session, call = _watched(workload, spec, batch, job["seed"])
    larger = _larger(session, batch + 1) if job["dynamic"] else None
    if larger is not None:
        call = with_dynamic_batch(call, larger)
    file = make_form(spec, session.plain_model, call, folder)
    others = sorted(path for path in folder.iterdir() if path != file and path.name.startswith(file.name))
    flat = FlatModel(session.plain_model, call, PRECISIONS.get(spec.precision))
    return Made(
        form=spec.form,
        arm=spec.name,
        seconds=time.perf_counter() - began,
        files=[file_info(path) for path in (file, *others)],
        inputs=_infos(call.names, call.tensors, larger.tensors if larger else call.tensors),
        outputs=_infos(call.output_names(), call.outputs, larger.outputs if larger else call.outputs),
        kept=numbers_kept(flat, call.tensors) if spec.form == "torchscript" else [],
    )


def _watched(workload: Workload, spec: ArmSpec, batch: int, seed: int) -> tuple[Session, Call]:
    plain = dataclasses.replace(spec, form="")
    session = Session(workload, plain, mode="infer", batch=batch, seed=seed)
    return session, capture(workload, session.plain_model, session.batches[0])


def _larger(session: Session, batch: int) -> Call:
    drawn = session.workload.make_batch(batch, torch.device("cpu"), generator(session.seed))
    return capture(session.workload, session.plain_model, session.place(drawn))


def _infos(names: list[str], tensors: list[Tensor], larger: list[Tensor]) -> list[TensorInfo]:
    return [
        TensorInfo(
            name=name,
            dtype=str(one.dtype).removeprefix("torch."),
            shape=[a if a == b else None for a, b in zip(one.shape, two.shape, strict=True)],
        )
        for name, one, two in zip(names, tensors, larger, strict=True)
    ]


def reload(job: dict[str, Any], listen: Listen) -> Reloaded:
    """The job: the form of ``arm`` in ``file``, read and held to the numeric gate at each batch of ``sizes``."""
    spec, file = parse_arm(job["arm"]), Path(job["file"])
    listen(f"reading {file.name}", 0, 1 + len(job["sizes"]))
    workload = workload_of(job)
    _, call = _watched(workload, spec, job["sizes"][0], job["seed"])
    began = time.perf_counter()
    load_form(file, spec, call)
    load_s = time.perf_counter() - began
    gates = []
    for done, size in enumerate(job["sizes"], start=1):
        listen(f"gate {spec.name} at batch {size}", done, 1 + len(job["sizes"]))
        how = {"batch": size, "seed": job["seed"], "files": {spec.name: file}}
        keeper = GateKeeper(workload, mode="infer", steps=1, **how)
        gates.append(judge_every(keeper, other_outputs(workload, **how), spec))
    return Reloaded(load_s=load_s, gate=_merged(gates, job["sizes"]))


def _merged(gates: list[Gate], sizes: list[int]) -> Gate:
    """The gates of several sizes as one; each check says its size where there are several."""
    if len(gates) == 1:
        return gates[0]
    checks = [
        dataclasses.replace(check, name=f"{check.name}, batch {size}")
        for gate, size in zip(gates, sizes, strict=True)
        for check in gate.checks
    ]
    return Gate(
        arm=gates[0].arm,
        passed=all(gate.passed for gate in gates),
        checks=checks,
        reference=f"float64 on the CPU, batches {' and '.join(str(size) for size in sizes)}",
        seconds=sum(gate.seconds for gate in gates),
    )
