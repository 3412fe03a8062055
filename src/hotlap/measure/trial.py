"""One trial of a search: one arm at one batch, alone in its process, in whole steps on the worst-case shape.

Everything that takes memory in use takes it here too: the optimizer's state, a forward pass for evaluation, and, in
the final form, the ragged tail of an epoch.
"""

from __future__ import annotations

import importlib
import math
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from hotlap.base.errors import TargetError
from hotlap.base.format import format_count
from hotlap.device.memory import PeakMemory
from hotlap.device.seed import generator
from hotlap.device.timing import time_block
from hotlap.measure.arms import ArmSpec, parse_arm
from hotlap.measure.nursery import COMPILERS
from hotlap.measure.process import Listen
from hotlap.measure.samples import require_samples
from hotlap.measure.session import Session
from hotlap.measure.timed import ArmTimer, Protocol
from hotlap.records.measurement import Memory
from hotlap.targets import load_target

MIN_STEPS = 3
NUM_BLOCKS = 5
"""Blocks of steps that are timed, each with one drain of the queue."""
MOST_TIMES = 2
"""How much longer than asked for the timing on a CPU may take, if its steps take longer than in the warm-up."""
TAIL_STEPS = 2
LONE = "a ragged end of one sample cannot be trained, for a BatchNorm needs two: take data that leaves none"
"""Of two samples no other end is left, and the batch itself runs."""
TOLD = ("torch.compile", "a ragged end")
"""How notes begin that are told with a search's verdict; the others are about its timing."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What one process measured of one configuration."""

    arm: str
    batch: int
    wall_ms: list[float]
    """A step's time, the mean of each block."""
    interval_ms: list[float]
    """Single steps, for percentiles."""
    first_step_s: float
    memory: Memory
    num_graphs: int = 0
    """That torch.compile made until the timing began."""
    num_breaks: int = 0
    num_recompiles: int = 0
    """Graphs made while steps were timed; the tail's own do not count."""
    tail_batch: int = 0
    tail_ms: list[float] = field(default_factory=list)
    tail_graphs: int = 0
    """Graphs made for the tail's shape."""
    notes: list[str] = field(default_factory=list)


def trial(job: dict[str, Any], listen: Listen) -> Trial:
    """The job: ``arm``, ``batch``, ``mode``, ``seconds`` of timing, ``tail`` samples of a ragged end (0 for none)."""
    spec, batch = parse_arm(job["arm"]), int(job["batch"])
    listen(f"{spec.name} at batch {batch}", 0, 3)
    workload = load_target(job["target"], job.get("options"), job.get("inputs", ()))
    import torch

    _import_early(spec, job["mode"])
    begin = compile_counts()
    peak = PeakMemory(torch.device(spec.torch_device))
    session = Session(workload, spec, mode=job["mode"], batch=batch, seed=job["seed"], worst_case=True)
    require_samples(session)
    timer = ArmTimer(session, seed=job["seed"])
    if job["tail"]:
        _check_finite(session)
    if session.mode == "train":
        _evaluate(session)
    listen("warm-up", 1, 3)
    timer.warm_up(_protocol(job))
    listen("timing", 2, 3)
    before = compile_counts()
    walls, intervals = _time(session, timer.step_s, job["seconds"])
    during = compile_counts()
    tail_ms = _run_tail(session, job["tail"]) if job["tail"] else []
    return Trial(
        arm=spec.name,
        batch=batch,
        wall_ms=walls,
        interval_ms=intervals,
        first_step_s=timer.first_step_s,
        memory=peak.read(),
        num_graphs=before[0] - begin[0],
        num_breaks=during[1] - begin[1],
        num_recompiles=during[0] - before[0],
        tail_batch=job["tail"],
        tail_ms=tail_ms,
        tail_graphs=compile_counts()[0] - during[0],
        notes=sorted(timer.flags) + ([LONE] if job["tail"] and not tail_ms else []),
    )


def _check_finite(session: Session) -> None:
    """Refuses an answer of a whole batch with numbers that are not: the numeric gate has seen a smaller one only."""
    answer = session.step()
    if bool(answer.isfinite().all()):
        return
    count = int((~answer.isfinite()).sum())
    kind = "loss" if session.mode == "train" else "output"
    raise TargetError(
        f"the {kind} of arm {session.spec.name!r} at batch {session.batch} is not finite, in {count:,} of "
        f"{format_count(answer.numel(), 'number')}",
        expected="finite numbers, as at the smaller batch of the numeric gate",
        remedy="Look for sums over the batch that overflow, or give the search a --max-batch below it",
    )


def _import_early(spec: ArmSpec, mode: str) -> None:
    """Imports what torch would import during the first steps, so that it does not count as memory that they took.

    A forked process has it already: peaks of the last run, in a fresh one, would stand out from those of other batches.
    """
    for name in COMPILERS if spec.compile else COMPILERS[:1] if mode == "train" else ():
        importlib.import_module(name)


def _protocol(job: dict[str, Any]) -> Protocol:
    return Protocol(
        process=0,
        repeats=MIN_STEPS,
        seconds=job["seconds"],
        max_seconds=job["seconds"],
        warmup_seconds=job["warmup_seconds"],
        transfer=False,
        began_at=time.time(),
    )


def _time(session: Session, step_s: float, seconds: float) -> tuple[list[float], list[float]]:
    """Block means and single intervals of about ``seconds`` of steps."""
    total = max(MIN_STEPS, math.ceil(seconds / max(step_s, 1e-6)))
    blocks = min(NUM_BLOCKS, total)
    walls: list[float] = []
    intervals: list[float] = []

    def step() -> None:
        session.step()

    for _ in range(blocks):
        block = time_block(step, math.ceil(total / blocks), session.device, most_s=MOST_TIMES * seconds / blocks)
        walls.append(block.wall_ms)
        intervals += block.intervals_ms
    return walls, intervals


def _evaluate(session: Session) -> None:
    """One forward pass as an evaluation makes it, for its share of the peak; never compiled, to save the time."""
    import torch

    session.plain_model.eval()
    with torch.inference_mode(), session.autocast():
        session.workload.predict(session.plain_model, session.batches[0])
    session.plain_model.train()


def _run_tail(session: Session, size: int) -> list[float]:
    """Times of a ragged batch, after which a full step must still run; none where a BatchNorm refuses a lone sample."""
    import torch

    host = session.workload.worst_case_batch(size, torch.device("cpu"), generator(session.seed))
    placed = session.place(host)

    def tail() -> None:
        session.run_tail(placed)

    try:
        times = [time_block(tail, 1, session.device).wall_ms for _ in range(TAIL_STEPS)]
    except Exception as error:
        if size > 1 or "more than 1 value per channel" not in str(error):
            raise
        times = []
    session.step()
    return times


def compile_counts() -> tuple[int, int]:
    """Graphs that torch.compile has made in this process, and places where it broke off."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return 0, 0
    return int(dynamo.counters["stats"]["unique_graphs"]), sum(dynamo.counters["graph_break"].values())
