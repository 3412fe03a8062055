"""What a measuring process can be asked to do. Each job takes plain JSON and gives plain records back."""

from __future__ import annotations

import importlib
import shutil
import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotlap.base.errors import HotlapError
from hotlap.base.raised import first_line, their_line
from hotlap.device.host import read_host
from hotlap.device.kept_memory import can_keep_memory
from hotlap.device.layout import has_convolutions, has_volumes
from hotlap.device.memory import PeakMemory, is_out_of_memory, release_memory
from hotlap.measure.arms import ArmSpec, parse_arm
from hotlap.measure.evidence import folder_for
from hotlap.measure.fingerprint import fingerprint
from hotlap.measure.gate import GateKeeper
from hotlap.measure.process import Listen
from hotlap.measure.quicktest import run_quicktest
from hotlap.measure.samples import require_samples
from hotlap.measure.session import Session, has_attention, kernel_layers
from hotlap.measure.timed import ArmTimer, Protocol, Trace, time_arms
from hotlap.measure.trial import trial
from hotlap.records.codec import decode
from hotlap.records.measurement import Gate, Measurement, Memory, Telemetry
from hotlap.targets import ModuleWorkload, load_target
from hotlap.workload import Workload

Job = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a tool must know of a workload and of torch before it plans."""

    name: str
    summary: str
    default_batch: int
    num_parameters: int
    has_convolutions: bool
    can_compile: bool
    """A C++ compiler is there for torch.compile on the CPU."""
    fast_bf16: bool
    usable_cores: int
    num_cuda: int
    cuda_name: str = ""
    cards: list[str] = field(default_factory=list)
    """What the CUDA devices really are, by their numbers here, which depend on those that are visible."""
    has_attention: bool = False
    """The model has torch's attention layers, or calls the fused attention function."""
    has_blocks: bool = False
    """Activation checkpointing has something to act on."""
    has_volumes: bool = False
    """Some of its convolutions are 3-D."""
    has_kernels: bool = False
    """Some of its layers have kernels of Hotlap's own."""
    has_norms: bool = False
    """It has convolutions and BatchNorm, which may be folded for inference."""
    has_odd_channels: bool = False
    """Some convolution's channels are no multiple of eight."""
    has_block_convolutions: bool = False
    """Some transposed convolution's stride is its kernel."""
    has_lost_biases: bool = False
    """Some BatchNorm takes away the bias of the convolution before it."""
    other_weights: list[str] = field(default_factory=list)
    """Floating-point types of its parameters beside float32."""
    num_samples: int | None = None
    """Of the training data; None where there is none, or it was not asked for."""
    can_keep_memory: bool = False


@dataclass(frozen=True, kw_only=True)
class ArmFailure:
    """Why one arm could not run."""

    arm: str
    what: str
    out_of_memory: bool = False


@dataclass(frozen=True, kw_only=True)
class Gates:
    gates: list[Gate] = field(default_factory=list)
    failures: list[ArmFailure] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Timings:
    """What one process measured."""

    measurements: list[Measurement] = field(default_factory=list)
    telemetry: list[Telemetry] = field(default_factory=list)
    failures: list[ArmFailure] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)
    """By arm."""


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Peak memory of one arm alone in a process."""

    memory: Memory
    first_step_s: float


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Milliseconds a step at several batch sizes; NaN where a size did not fit."""

    batches: list[int]
    times_ms: dict[str, list[float]]


def workload_of(job: Job) -> Workload:
    """The workload that a job names, with trained weights where it names those too."""
    workload = load_target(job["target"], job.get("options"), job.get("inputs", ()))
    if job.get("weights"):
        from hotlap.measure.weights import with_weights

        return with_weights(workload, Path(job["weights"]))
    return workload


def describe(job: Job, listen: Listen) -> Description:
    import torch

    from hotlap.measure.folded import has_norms
    from hotlap.measure.padded import odd_convolutions
    from hotlap.measure.recompute import find_blocks
    from hotlap.measure.shuffled import block_convolutions
    from hotlap.measure.unbiased import biases_lost

    listen("loading the target", 0, 1)
    workload = workload_of(job)
    model = workload.build_model()
    host = read_host()
    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return Description(
        name=workload.name,
        summary=workload.summary,
        default_batch=workload.default_batch,
        num_parameters=sum(p.numel() for p in model.parameters()),
        has_convolutions=has_convolutions(model),
        has_volumes=has_volumes(model),
        can_compile=any(shutil.which(name) for name in ("g++", "c++", "clang++")),
        fast_bf16=host.has_fast_bf16,
        usable_cores=host.usable_cores,
        num_cuda=cuda,
        cuda_name=torch.cuda.get_device_name(0) if cuda else "",
        cards=[str(torch.cuda.get_device_properties(index).uuid) for index in range(cuda)],
        has_attention=has_attention(model),
        has_kernels=bool(kernel_layers(model)),
        has_blocks=bool(find_blocks(model)),
        has_norms=has_norms(model),
        has_odd_channels=bool(odd_convolutions(model)),
        has_block_convolutions=bool(block_convolutions(model)),
        has_lost_biases=bool(biases_lost(model)),
        other_weights=sorted(
            {str(p.dtype).removeprefix("torch.") for p in model.parameters() if p.is_floating_point()} - {"float32"}
        ),
        num_samples=_num_samples(workload) if job.get("count_samples") else None,
        can_keep_memory=can_keep_memory(),
    )


def _num_samples(workload: Workload) -> int | None:
    data = workload.train_data()
    return len(data) if data is not None and hasattr(data, "__len__") else None


def gate(job: Job, listen: Listen) -> Gates:
    from hotlap.measure.every_output import judge_every, other_outputs  # imports torch, which callers need not have

    arms = [parse_arm(name) for name in job["arms"]]
    doing = ("float64 reference", 0, len(arms) + 1)
    listen(*doing)
    workload = workload_of(job)
    how: dict[str, Any] = {"batch": job["batch"], "seed": job["seed"], "kept": folder_for(job.get("kept", ""), job)}
    how |= {"card": _card_of(arms), "tell": lambda: listen(*doing)}
    keeper = GateKeeper(workload, mode=job["mode"], steps=job["steps"], **how)
    # A workload of the user's own says what its answer is; of a plain model anything may be.
    is_asked = job["mode"] == "infer" and isinstance(workload, ModuleWorkload)
    others = other_outputs(workload, **how) if is_asked else []
    gates, failures = [], []
    for done, spec in enumerate(arms, start=1):
        doing = (f"gate {spec.name}", done, len(arms) + 1)
        listen(*doing)
        try:
            gates.append(judge_every(keeper, others, spec))
        except Exception as error:  # noqa: BLE001 - one arm that fails in its own way must not hide the others
            failures.append(failure(spec, error, job["batch"]))
        release_memory()
    return Gates(gates=gates, failures=failures)


def _card_of(arms: Sequence[ArmSpec]) -> ArmSpec | None:
    """The plain arm of the card that one of these runs on."""
    return next((ArmSpec(device=arm.device, index=arm.index) for arm in arms if arm.device != "cpu"), None)


def failure(spec: ArmSpec, error: Exception, batch: int) -> ArmFailure:
    traceback.print_exc()
    starved = is_out_of_memory(error)
    if isinstance(error, HotlapError):  # in its own words, which name the value
        return ArmFailure(arm=spec.name, what=str(error), out_of_memory=starved)
    where = "" if starved else f" {their_line(error)}"
    what = f"{type(error).__name__} at batch {batch}: {first_line(error)}{where}"
    return ArmFailure(arm=spec.name, what=what, out_of_memory=starved)


def footprint(job: Job, listen: Listen) -> Footprint:
    """Three full steps of one arm, alone in this process, on its worst-case batch."""
    import torch

    spec = parse_arm(job["arm"])
    listen(f"memory {spec.name}", 0, 1)
    workload = workload_of(job)
    peak = PeakMemory(torch.device(spec.torch_device))
    batch = spec.batch or job["batch"]
    session = Session(workload, spec, mode=job["mode"], batch=batch, seed=job["seed"], worst_case=True)
    first = ArmTimer(session, seed=job["seed"]).first_step_s
    for _ in range(2):
        session.step()
    return Footprint(memory=peak.read(), first_step_s=first)


def timing(job: Job, listen: Listen) -> Timings:
    """Every arm of the job, interleaved; with ``worst_case``, on the workload's largest inputs."""
    protocol: Protocol = decode(Protocol, job["protocol"])
    workload = workload_of(job)
    timers, failures = [], []
    labels = job.get("labels") or job["arms"]
    files: dict[str, str] = job.get("files") or {}
    for number, (name, label) in enumerate(zip(job["arms"], labels, strict=True)):
        spec = parse_arm(name)
        listen(f"warm-up {label}", number, len(labels))
        try:
            file = Path(files[name]) if name in files else None
            batch = spec.batch or job["batch"]
            how: Job = {"mode": job["mode"], "seed": job["seed"], "worst_case": job.get("worst_case", False)}
            session = Session(workload, spec, batch=batch, file=file, **how)
            require_samples(session)
            timer = ArmTimer(session, seed=job["seed"], label=label)
            timer.warm_up(protocol)
            timers.append(timer)
        except Exception as error:  # noqa: BLE001 - an arm that cannot run is a row in the table, not the end
            failures.append(failure(spec, error, spec.batch or job["batch"]))
    trace: Trace = time_arms(timers, protocol, listen)
    return Timings(
        measurements=trace.measurements,
        telemetry=trace.telemetry,
        failures=[*failures, *(failure(t.spec, e, t.session.batch) for t, e in trace.errors)],
        notes=trace.notes,
    )


def sweep(job: Job, listen: Listen) -> Sweep:
    """Host-to-host time of a step at each batch size: a few iterations, for the break-even point, not for claims."""
    batches: Sequence[int] = job["batches"]
    times: dict[str, list[float]] = {name: [] for name in job["arms"]}
    workload = workload_of(job)
    for number, batch in enumerate(batches):
        for name in job["arms"]:
            listen(f"batch {batch} on {name}", number, len(batches))
            times[name].append(_time_at(workload, parse_arm(name), batch, job))
            release_memory()
    return Sweep(batches=list(batches), times_ms=times)


def _time_at(workload: Workload, spec: ArmSpec, batch: int, job: Job) -> float:
    try:
        session = Session(workload, spec, mode=job["mode"], batch=batch, seed=job["seed"])
        for _ in range(2):
            session.transfer_step()
        samples: list[float] = []
        deadline = time.perf_counter() + job["seconds"]
        while len(samples) < 3 or (len(samples) < 30 and time.perf_counter() < deadline):
            begin = time.perf_counter()
            session.transfer_step()
            samples.append(1e3 * (time.perf_counter() - begin))
    except Exception as error:
        if is_out_of_memory(error):
            return float("nan")
        raise
    return statistics.median(samples)


JOBS: dict[str, Callable[[Job, Listen], Any] | str] = {
    "describe": describe,
    "gate": gate,
    "footprint": footprint,
    "timing": timing,
    "sweep": sweep,
    "quicktest": run_quicktest,
    "trial": trial,
    "fingerprint": fingerprint,
    "profile": "hotlap.measure.profiled:profile_arm",
    "deploy": "hotlap.measure.deploy_jobs:make",
    "reload": "hotlap.measure.deploy_jobs:reload",
    "loader": "hotlap.engine.loader_job:measure_loader",
    "watch": "hotlap.engine.verify_job:watch",
}
"""A job of a room to the right, or one that needs torch at once, is known by its import path, as targets are."""


def find_job(name: str) -> Callable[[Job, Listen], Any]:
    """The function that does a job."""
    found = JOBS[name]
    if not isinstance(found, str):
        return found
    module, _, function = found.partition(":")
    job: Callable[[Job, Listen], Any] = getattr(importlib.import_module(module), function)
    return job
