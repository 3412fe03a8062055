"""The tool itself: learn the step time, try loader settings from small to large, choose, keep every sample."""

from __future__ import annotations

import dataclasses
import statistics
import time
from pathlib import Path
from typing import Any

from hotlap.base import events
from hotlap.base.errors import EXIT_OK, HotlapError, TargetError
from hotlap.base.events import Emit, ignore
from hotlap.base.format import format_ms
from hotlap.device.probe import require_cuda
from hotlap.engine.loader_choice import (
    Choice,
    Row,
    Speed,
    candidates,
    choose,
    consumption_of,
    describe,
    rate_that_decides,
    read_limits,
    worker_counts,
)
from hotlap.engine.loader_search import search
from hotlap.engine.loader_settings import LoaderSettings
from hotlap.measure.arms import ArmSpec, parse_arm, refuse_batch
from hotlap.measure.jobs import Description, Timings
from hotlap.measure.nursery import COMPILERS, Nursery
from hotlap.measure.process import run_job
from hotlap.measure.timed import NOT_STEADY, Protocol
from hotlap.records.codec import decode, encode
from hotlap.records.environment import Environment, capture
from hotlap.records.loading import Claim, loading
from hotlap.records.measurement import Measurement, Verdict
from hotlap.records.run import RunRecord, begin, now, save
from hotlap.targets import short_name
from hotlap.tools.loader.config import LoaderConfig

JOBS = (*COMPILERS[:1], "hotlap.engine.loader_job")
BRIEF = Protocol(
    process=0, repeats=10, seconds=1.0, max_seconds=10.0, warmup_seconds=10.0, transfer=False, began_at=0.0
)
UNSTEADY = 1.5
"""The highest sample of the step over the lowest, above which it is told: the choice rests on their median."""


def loader(config: LoaderConfig, emit: Emit = ignore, *, sources: dict[str, str] | None = None) -> RunRecord:
    """The loader settings for one target on this machine, with everything that was measured to find them."""
    emit(events.start("loader", None, f"loading {config.target}"))
    with Nursery(JOBS) as nursery:
        name = config.name or f"{short_name(config.target)}-loader"
        with loading("loader", name, config, sources or {}) as claim:
            environment = capture()  # imports torch here while the nursery does it there
            answer = run_job(_job(config, "describe"), timeout_s=config.timeout_s, nursery=nursery)
            about: Description = decode(Description, answer)
            run = _Run(config, emit, about, sources or {}, environment, nursery, claim)
        return _search(run)


def _search(run: _Run) -> RunRecord:
    try:
        run.measure()
    except KeyboardInterrupt:
        run.close("interrupted", why="Interrupted; what was measured until then is here.")
        raise
    except HotlapError as error:
        run.close("failed", why=str(error))
        raise
    finally:
        run.emit(events.finish("loader"))
    return run.close("complete")


def _job(config: LoaderConfig, job: str, **extra: Any) -> dict[str, Any]:
    common = {"target": config.target, "options": config.workload, "inputs": list(config.input), "seed": config.seed}
    return {"job": job, **common, **extra}


class _Run:
    """One search under way."""

    def __init__(
        self,
        config: LoaderConfig,
        emit: Emit,
        about: Description,
        sources: dict[str, str],
        environment: Environment,
        nursery: Nursery,
        claim: Claim,
    ) -> None:
        self.config, self.emit, self.nursery = config, emit, nursery
        self.spec: ArmSpec = parse_arm(config.arm or ("cuda" if about.num_cuda else "cpu"))
        refuse_batch(self.spec, "--batch")
        if self.spec.device == "cuda" and self.spec.index >= about.num_cuda:
            require_cuda(self.spec.index)
        self.batch = config.batch or about.default_batch
        self.limits = read_limits()
        self.rows: list[Row] = []
        self.step_ms: float = config.step_ms or 0.0
        self.step_range: tuple[float | None, float | None] = (None, None)
        self.measurements: list[Measurement] = []
        self.choice: Choice | None = None
        self.notes: list[str] = []
        resolved = dataclasses.replace(config, batch=self.batch, arm=self.spec.name)
        self.folder: Path = claim.take()
        self.record = begin("loader", claim.name, resolved, sources, environment)

    def measure(self) -> None:
        self._save()
        tries = self._tries()
        total = len(tries) + 1
        self.emit(events.advance("loader", 0, total, "step time"))
        # One setting without workers comes before the step: whatever is wrong with the data shows at once.
        first = self._try(tries[0])
        if not self.step_ms:
            self.step_ms = self._step_ms(total)
        consumption = consumption_of(self.batch, self.step_ms)

        def measure(settings: LoaderSettings) -> Speed:
            self.emit(events.advance("loader", len(self.rows) + 1, total, describe(settings)))
            if settings == tries[0]:
                return first
            return self._try(settings, decides=rate_that_decides(settings, consumption, self.config.headroom))

        asked = {"consumption": consumption, "headroom": self.config.headroom}
        for row in search(tries, measure, self.limits, full=self.config.full, **asked):
            self.rows.append(row)
            self._save()
        self.choice = choose(self.rows, **asked)

    def _tries(self) -> list[LoaderSettings]:
        config, cpus = self.config, self.limits.cpus
        over = [count for count in config.workers if count > cpus]
        if over:
            self._warn(
                f"workers = {max(over)} is more than the {cpus} CPUs that can be used here; they will take turns."
            )
        counts = {0, *(config.workers or worker_counts(cpus))}
        return candidates(sorted(counts), prefetches=config.prefetch, pin_memory=self.spec.device == "cuda")

    def _try(self, settings: LoaderSettings, decides: float | None = None) -> Speed:
        job = _job(
            self.config,
            "loader",
            settings=encode(settings),
            batch=self.batch,
            device=self.spec.torch_device,
            seconds=self.config.seconds,
            on_bad_sample=self.config.on_bad_sample,
            decides=None if self.config.full else decides,
        )
        speed: Speed = decode(Speed, run_job(job, timeout_s=self.config.timeout_s, nursery=self.nursery))
        label = describe(settings)
        self.measurements.append(
            Measurement(quantity="loader_rate", unit="samples/s", arm=label, process=0, values=speed.rates)
        )
        return speed

    def _step_ms(self, total: int) -> float:
        """The median training step on inputs that lie on the device: the model's pace if it never waited."""

        def listen(text: str, done: float, out_of: float) -> None:
            self.emit(events.advance("loader", done / out_of, total, f"step time: {text}"))

        protocol = encode(dataclasses.replace(BRIEF, began_at=time.time()))
        name = self.spec.name
        job = _job(self.config, "timing", arms=[name], batch=self.batch, mode="train", protocol=protocol)
        answer = run_job(job, timeout_s=self.config.timeout_s, listen=listen, nursery=self.nursery)
        found: Timings = decode(Timings, answer)
        walls = [m for m in found.measurements if m.quantity == "wall"]
        values, flags = [v for m in walls for v in m.values], sorted({flag for m in walls for flag in m.flags})
        if not values:
            why = found.failures[0].what if found.failures else "it gave no samples"
            raise TargetError(
                f"the step of {self.config.target!r} could not be timed on {name}: {why}",
                remedy="Take a smaller --batch, another --arm, or give the time with --step-ms",
            )
        step = Measurement(quantity="step", unit="ms", arm=name, process=0, values=values, flags=flags)
        self.measurements.append(step)
        self.step_range = min(values), max(values)
        if NOT_STEADY in flags or max(values) > UNSTEADY * min(values):
            self._warn(_unsteady(values, flags))
        return statistics.median(values)

    def _warn(self, text: str) -> None:
        self.notes.append(text)
        self.emit(events.warn(text))

    def _snapshot(self) -> RunRecord:
        consumption = consumption_of(self.batch, self.step_ms) if self.step_ms else None
        rows = self.choice.rows if self.choice else self.rows
        found = {
            "batch": self.batch,
            "step_ms": self.step_ms or None,
            "step_low_ms": self.step_range[0],
            "step_high_ms": self.step_range[1],
            "consumption": consumption,
            "headroom": self.config.headroom,
            "limits": encode(self.limits),
            "rows": [{**encode(row), "label": describe(row.settings)} for row in rows],
            "enough": self.choice.enough if self.choice else None,
            "arguments": self.choice.settings.dataloader_arguments() if self.choice else None,
        }
        return dataclasses.replace(
            self.record, extra={"loader": found}, measurements=list(self.measurements), notes=list(self.notes)
        )

    def _save(self) -> None:
        self.record = save(self._snapshot(), self.folder)

    def _verdict(self) -> Verdict:
        assert self.choice is not None
        arguments = ", ".join(f"{k}={v}" for k, v in self.choice.settings.dataloader_arguments().items())
        lines = [*self.choice.lines, f"For your own loop: DataLoader(data, batch_size={self.batch}, {arguments})"]
        outcome = "keeps up" if self.choice.enough else "bottleneck"
        return Verdict(outcome=outcome, headline=self.choice.headline, exit_code=EXIT_OK, lines=lines)

    def close(self, status: str, *, why: str = "") -> RunRecord:
        """The finished record, with its verdict, on disk."""
        failed = Verdict(outcome=status, headline=why, exit_code=1)
        verdict = failed if self.choice is None or status != "complete" else self._verdict()
        told = [f"{text[0].upper()}{text[1:]}." for text in self.nursery.notes]
        notes = [*self.notes, *told, *self._caveats(), *([why] if why else [])]
        record = dataclasses.replace(self._snapshot(), status=status, finished_at=now(), verdict=verdict, notes=notes)
        self.record = save(record, self.folder)
        return self.record

    def _caveats(self) -> list[str]:
        if self.spec.device != "cpu" or self.choice is None or not self.choice.settings.num_workers:
            return []
        return ["The model runs on the CPU too: step and loader were timed apart, and together both will be slower."]


def _unsteady(values: list[float], flags: list[str]) -> str:
    """What to tell of a step whose samples do not agree."""
    cold = f", and the {NOT_STEADY}" if NOT_STEADY in flags else ""
    return (
        f"The step's time is unsteady: samples from {format_ms(min(values))} to {format_ms(max(values))}{cold}. The "
        "choice rests on their median; repeat it when the machine is quiet, or give the time with --step-ms."
    )
