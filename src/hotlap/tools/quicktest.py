"""``hotlap quicktest``: the way from the device to ten training steps, walked once in a fresh process."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hotlap.base import events
from hotlap.base.errors import EXIT_CHECK_FAILED, EXIT_OK, ConfigError, OutOfMemory, WorkerDied
from hotlap.base.events import Emit, ignore
from hotlap.base.settings import Layer
from hotlap.measure.process import run_job
from hotlap.measure.quicktest import STEPS, Outcome, died
from hotlap.records.codec import decode
from hotlap.records.environment import capture
from hotlap.records.measurement import Check, Verdict
from hotlap.records.run import RunRecord, begin, now, run_folder, save

TASK = "quicktest"
SMALL = Layer("quicktest's own", {"target": "unet", "batch": 4, "workload": {"width": 8, "size": 64}})


@dataclass(frozen=True, kw_only=True)
class QuickTestConfig:
    """Walks six steps: device, optimisations, model to the device, AMP forward, scaled backward, training steps."""

    target: str = ""
    """Registered name, module:factory or file.py:factory; by default, and for unet, a small unet."""
    device: str = "auto"
    """auto (a card that torch can use, else the CPU), cpu, cuda or cuda:1."""
    steps: int = 10
    """Training steps."""
    batch: int | None = None
    """Samples a step; by default 4, or fewer if the workload's own batch is smaller."""
    input: tuple[str, ...] = ()
    """Shape of each input of a plain nn.Module, without the batch: 3x224x224, or 128:int64:32000 for token ids."""
    workload: dict[str, Any] = field(default_factory=dict)
    """Options of the target's factory, as --set workload.size=64."""
    seed: int = 0
    """Decides weights and inputs."""
    timeout_s: float = 120.0
    """Longest life of the process that walks the steps."""
    runs: Path = Path("runs")
    """Where the record goes, under quicktest/<timestamp>."""

    def __post_init__(self) -> None:
        for key in ("steps", "batch"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ConfigError(f"{key} = {value} is too small", expected="at least 1")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ConfigError(f"device = {self.device!r} is not a device", expected="auto, cpu, cuda or cuda:1")
        if not 0 < self.timeout_s < math.inf:
            raise ConfigError(f"timeout_s = {self.timeout_s:g} is not valid", expected="a number of seconds above 0")

    def presets(self) -> list[Layer]:
        """Small settings for the target that is tested when none is named."""
        return [SMALL] if self.target in ("", SMALL.values["target"]) else []


def quicktest(config: QuickTestConfig, emit: Emit = ignore, *, sources: dict[str, str] | None = None) -> RunRecord:
    """Walks the six steps; the record holds what each observed, its seconds and the memory after it."""
    emit(events.start(TASK, len(STEPS), f"loading {config.target}"))
    record = begin(TASK, TASK, config, sources or {}, capture(import_torch=False))
    folder = run_folder(config.runs, TASK)
    save(record, folder)
    try:
        outcome = _walk(config, emit)
    except BaseException as error:
        status = "failed" if isinstance(error, Exception) else "interrupted"
        save(replace(record, status=status, finished_at=now(), notes=[str(error)]), folder)
        raise
    finally:
        emit(events.finish(TASK))
    extra = {"batch": outcome.batch}
    record = replace(record, status="complete", finished_at=now(), checks=outcome.checks, extra=extra)
    return save(replace(record, verdict=judge(outcome)), folder)


def _walk(config: QuickTestConfig, emit: Emit) -> Outcome:
    """The outcome of a fresh process; one that dies or hangs has failed in the step it had not told of."""
    heard: dict[int, str] = {}

    def listen(text: str, done: float, total: float) -> None:
        heard[int(done)] = text
        if done:
            emit(events.advance(TASK, done, total, text))

    job = {
        "job": TASK,
        "target": config.target,
        "options": config.workload,
        "inputs": list(config.input),
        "device": config.device,
        "steps": config.steps,
        "batch": config.batch,
        "seed": config.seed,
    }
    try:
        outcome: Outcome = decode(Outcome, run_job(job, timeout_s=config.timeout_s, listen=listen))
    except (WorkerDied, OutOfMemory) as error:
        if not heard:  # no step has begun that could have failed
            what = f"{error.what}, while the target was loaded"
            raise type(error)(what, expected=error.expected, remedy=error.remedy) from error
        return Outcome(checks=died(heard, error), exit_code=EXIT_CHECK_FAILED, batch=config.batch or 0)
    return outcome


def judge(outcome: Outcome) -> Verdict:
    """0 when every step passed, on whatever device; else the exit code of the step that failed."""
    failed: Check | None = next((check for check in outcome.checks if check.status == "FAIL"), None)
    if failed is None:
        return Verdict(outcome="works", headline=f"All {len(outcome.checks)} steps passed", exit_code=EXIT_OK)
    number = outcome.checks.index(failed) + 1
    headline = f"Step {number} of {len(outcome.checks)} ({failed.name}) failed: {failed.observed}"
    return Verdict(outcome="failed", headline=headline, exit_code=outcome.exit_code)
