"""One arm under torch.profiler: the unprofiled step first, then a lean trace for times and a rich one for reasons.

Stacks and memory events cost many times what shapes cost, and would make any step look starved by its host. So times
and idle gaps come from a trace without them; source lines and the memory timeline from a second, shorter one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotlap.base.errors import StorageError
from hotlap.data.kineto import SETTLE_MARK
from hotlap.device.host import read_host
from hotlap.device.kept_memory import can_keep_memory
from hotlap.device.layout import has_convolutions
from hotlap.device.timing import FullQueue, time_block, time_host
from hotlap.measure.arms import parse_arm
from hotlap.measure.process import Listen
from hotlap.measure.session import Session, kernel_layers
from hotlap.measure.timed import ArmTimer, Protocol
from hotlap.records.ceilings import device_key
from hotlap.targets import load_target

if TYPE_CHECKING:
    from torch.profiler import profile

DETAIL_STEPS = 2
NUM_BLOCKS = 5
NUM_STAGES = 5
FEW = 2
"""Samples of a step that leaves the device next to nothing to do; with one, batch statistics may have no spread."""
WARM_UP = Protocol(
    process=0, repeats=5, seconds=0.5, max_seconds=20.0, warmup_seconds=10.0, transfer=False, began_at=0.0
)


@dataclass(frozen=True, kw_only=True)
class Wait:
    """A source line that makes the host wait for the device, within one step."""

    where: str
    why: str
    count: int


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """What one process found out about one arm."""

    arm: str
    mode: str
    batch: int
    steps: int
    trace: str
    """The lean trace's file."""
    detail: str
    """The rich trace's file, '' when it was not asked for."""
    step_ms: list[float]
    """Without the profiler, right before: a wall time for each block of steps."""
    device_ms: list[float] = field(default_factory=list)
    """Without the profiler, the device alone, its queue kept full; empty on the CPU."""
    host_ms: list[float] = field(default_factory=list)
    """Without the profiler, from an empty queue until the step's call returned; empty on the CPU."""
    system_ms: float = 0.0
    """Of a step on the CPU, the kernel's part of each thread's time; it clears the pages that are handed out."""
    num_pages: float = 0.0
    """Fresh pages that a step on the CPU was handed."""
    can_keep_memory: bool = False
    few_ms: list[float] = field(default_factory=list)
    """Wall times of steps with FEW samples, of which the host's part is as in the others; empty where none could be."""
    few_device_ms: list[float] = field(default_factory=list)
    """The device alone in such steps, its queue kept full."""
    traced_ms: float
    """Wall time of a step while the lean trace was taken."""
    detail_ms: float | None = None
    """The same for the rich trace."""
    flops: float | None = None
    """Multiplications and additions of one step, as torch counts them; None where it cannot."""
    flops_by_op: dict[str, float] = field(default_factory=dict)
    waits: list[Wait] = field(default_factory=list)
    ceilings_key: str = ""
    has_convolutions: bool = False
    has_kernels: bool = False
    """Whether a layer has a kernel of Hotlap's own."""
    has_norms: bool = False
    """Whether some BatchNorm may be folded into a convolution."""
    num_weights: int = 0
    """Numbers in the model's parameters, and in how many tensors."""
    num_weight_tensors: int = 0
    fast_bf16: bool = True
    notes: list[str] = field(default_factory=list)


def profile_arm(job: dict[str, Any], listen: Listen) -> Profiled:
    """The job "profile": one arm, warmed up, timed, traced."""
    import torch

    from hotlap.measure.folded import has_norms

    spec = parse_arm(job["arm"])
    listen(f"warm-up {spec.name}", 0, NUM_STAGES)
    workload = load_target(job["target"], job.get("options"), job.get("inputs", ()))
    session = Session(workload, spec, mode=job["mode"], batch=job["batch"], seed=job["seed"])
    timer = ArmTimer(session, seed=job["seed"])
    timer.warm_up(dataclasses.replace(WARM_UP, warmup_seconds=job.get("warmup_seconds", WARM_UP.warmup_seconds)))
    listen("the step without the profiler", 1, NUM_STAGES)
    steps = max(int(job["steps"]), 1)
    used = _usage()
    plain = [time_block(_call(session), steps, session.device).wall_ms for _ in range(NUM_BLOCKS)]
    system_s, pages = (after - before for after, before in zip(_usage(), used, strict=True))
    alone = FullQueue().time(_call(session), 3)[0] if timer.on_cuda else []
    host = time_host(_call(session), NUM_BLOCKS) if timer.on_cuda else []
    few, few_alone = _time_few(session, steps) if timer.on_cuda and _eager(session) and job["batch"] > FEW else ([], [])
    folder, stem = Path(job["folder"]), job["stem"]
    listen("trace for times", 2, NUM_STAGES)
    lean, rich = folder / f"{stem}.pt.trace.json.gz", folder / f"{stem}.detail.pt.trace.json.gz"
    traced = _traced(session, steps, lean, rich=False)
    detail_ms = None
    if job.get("detail", True):
        listen("trace with stacks and memory", 3, NUM_STAGES)
        detail_ms = _traced(session, DETAIL_STEPS, rich, rich=True)
    listen("arithmetic and waits", 4, NUM_STAGES)
    flops, by_op, waits, notes = _counted(session)
    model = session.plain_model
    return Profiled(
        arm=spec.name,
        mode=job["mode"],
        batch=job["batch"],
        steps=steps,
        trace=str(lean),
        detail=str(rich) if detail_ms is not None else "",
        step_ms=plain,
        device_ms=alone,
        host_ms=host,
        few_ms=few,
        few_device_ms=few_alone,
        system_ms=0.0 if timer.on_cuda else 1e3 * system_s / (NUM_BLOCKS * steps * torch.get_num_threads()),
        num_pages=0.0 if timer.on_cuda else pages / (NUM_BLOCKS * steps),
        can_keep_memory=can_keep_memory(),
        traced_ms=traced,
        detail_ms=detail_ms,
        flops=flops,
        flops_by_op=by_op,
        waits=waits,
        ceilings_key=_ceilings_key(session),
        has_convolutions=has_convolutions(model),
        has_kernels=bool(kernel_layers(model)),
        has_norms=has_norms(model),
        num_weights=sum(weight.numel() for weight in model.parameters()),
        num_weight_tensors=sum(1 for _ in model.parameters()),
        fast_bf16=session.device.type == "cuda" or read_host().has_fast_bf16,
        notes=[*notes, *sorted(timer.flags)],
    )


def _usage() -> tuple[float, int]:
    """Seconds that the kernel has worked for this process, and pages it was handed; 0 where that is not known."""
    try:
        import resource
    except ImportError:
        return 0.0, 0
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_stime, used.ru_minflt


def _time_few(session: Session, steps: int) -> tuple[list[float], list[float]]:
    """Wall times of steps with few samples, and the device's own times in them.

    Launches wait where the device's queue is full, so the host's own time shows best where there is little work.
    """
    import torch

    try:
        return _few_steps(session, steps)
    except Exception:  # noqa: BLE001 - a model may refuse so few samples, and there may be no memory beside the other
        return [], []
    finally:
        session.activate()
        torch.cuda.empty_cache()


def _few_steps(session: Session, steps: int) -> tuple[list[float], list[float]]:
    small = Session(session.workload, session.spec, mode=session.mode, batch=FEW, seed=session.seed)
    for _ in range(steps):
        small.step()
    wall = [time_block(_call(small), steps, small.device).wall_ms for _ in range(NUM_BLOCKS)]
    return wall, FullQueue().time(_call(small), 3)[0] if small.device.type == "cuda" else []


def _call(session: Session) -> Any:
    def step() -> None:
        session.step()

    return step


def _eager(session: Session) -> bool:
    return not (session.spec.compile or session.spec.graph)


def _traced(session: Session, steps: int, path: Path, *, rich: bool) -> float:
    """Writes a trace of ``steps`` steps to ``path``; the wall time of one of them in ms."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    on_cuda = session.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]

    def settle() -> None:
        if on_cuda:
            with record_function(SETTLE_MARK):
                torch.cuda.synchronize()

    def save(found: profile) -> None:
        try:
            found.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            raise StorageError(
                f"cannot write the trace {str(path)!r}: {error}", remedy="Free some space or choose another --runs"
            ) from error

    with (
        _marked(session),
        profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=1, active=steps, repeat=1),
            on_trace_ready=save,
            record_shapes=True,
            profile_memory=rich,
            with_stack=rich,
        ) as tracer,
    ):
        session.step()
        settle()
        tracer.step()
        # Readers of many ranks want to be told that this is the only one.
        tracer.add_metadata_json("distributedInfo", json.dumps({"backend": "none", "rank": 0, "world_size": 1}))
        begin = time.perf_counter()
        for number in range(steps):
            session.step()
            if number == steps - 1:
                settle()
                spent = time.perf_counter() - begin
            tracer.step()
    return 1e3 * spent / steps


@contextlib.contextmanager
def _marked(session: Session) -> Iterator[None]:
    """Names of modules and of the loss in the trace; a compiled or recorded step would be changed by them."""
    from hotlap.measure.marks import loss_marked, marked_modules

    if not _eager(session):
        yield
        return
    plain = session.workload
    session.workload = loss_marked(plain)
    try:
        with marked_modules(session.plain_model):
            yield
    finally:
        session.workload = plain


def _counted(session: Session) -> tuple[float | None, dict[str, float], list[Wait], list[str]]:
    """Arithmetic of one step, and the lines that wait; both by watching one eager step of the plain model."""
    from torch.utils.flop_counter import FlopCounterMode

    from hotlap.measure.marks import WaitWatcher

    notes: list[str] = []
    if not _eager(session):
        notes.append("Modules, arithmetic and waiting lines are not marked in a compiled or recorded step.")
        return None, {}, [], notes
    watcher, counter = WaitWatcher(), FlopCounterMode(display=False)
    with watcher:
        session.step()
    try:
        with counter:
            session.step()
    except Exception as error:  # noqa: BLE001 - torch's counter does not know every operator; the profile stands without
        notes.append(f"torch could not count the step's arithmetic: {type(error).__name__}: {error}")
        return None, {}, _waits(watcher), notes
    by_op = {str(name): float(value) for name, value in counter.get_flop_counts().get("Global", {}).items()}
    return float(counter.get_total_flops()), by_op, _waits(watcher), notes


def _waits(watcher: Any) -> list[Wait]:
    return [Wait(where=where, why=why, count=count) for (where, why), count in watcher.found.most_common()]


def _ceilings_key(session: Session) -> str:
    """The name under which the doctor keeps this device's measured ceilings."""
    import torch

    version = str(torch.__version__)
    if session.device.type == "cuda":
        uuid = str(torch.cuda.get_device_properties(session.device).uuid)
        return device_key(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}", version)
    return device_key(f"{read_host().cpu_model}_{torch.get_num_threads()}-threads", version)
