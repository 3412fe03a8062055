"""The tool itself: make each form, read it back in a fresh process, judge it, deliver what is right, time it."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

from hotlap.base import events
from hotlap.base.errors import EXIT_OUT_OF_MEMORY, EnvironmentUnusable, HotlapError, WorkerDied
from hotlap.base.events import Emit, ignore
from hotlap.base.format import format_target
from hotlap.measure.arms import parse_arm
from hotlap.measure.compared import build_arm, compare_arms
from hotlap.measure.deploy_files import FILES, Made, Reloaded
from hotlap.measure.jobs import ArmFailure, Description, Timings
from hotlap.measure.process import run_job
from hotlap.measure.timed import Protocol
from hotlap.records.codec import decode, encode
from hotlap.records.environment import capture
from hotlap.records.loading import Claim, loading
from hotlap.records.measurement import Gate, Measurement, Telemetry
from hotlap.records.run import RunRecord, begin, now, save, write_atomic
from hotlap.targets import short_name
from hotlap.tools.export.config import QUICK_GIVES_UP, ExportConfig
from hotlap.tools.export.folder import MANIFEST, check_free, keep_only, publish, staged
from hotlap.tools.export.manifest import make_manifest, make_page
from hotlap.tools.export.plan import Plan, make_plan
from hotlap.tools.export.rows import FormRow
from hotlap.tools.export.verdict import OUT_OF_MEMORY, give_verdict

TASK = "export"
PAGE = "README.md"


def export(config: ExportConfig, emit: Emit = ignore, *, sources: dict[str, str] | None = None) -> RunRecord:
    """Exports one target; the folder holds only forms that gave the right answer when they were read back."""
    check_free(config.folder)
    emit(events.start(TASK, None, f"loading {config.target}"))
    try:
        name = config.name or f"{short_name(config.target)}-export"
        with loading(TASK, name, config, sources or {}) as claim:
            about = describe(config)
            run = _Run(config, emit, about, make_plan(config, about, emit), sources or {}, claim)
        return run.go()
    finally:
        emit(events.finish(TASK))


def preview(config: ExportConfig) -> list[str]:
    """What a run with this config would do, in lines; loads the target, makes nothing."""
    check_free(config.folder)
    about = describe(config)
    plan = make_plan(config, about, ignore)
    any_batch = "any batch" if config.dynamic_batch else f"batch {plan.batch} only"
    return [
        *plan.told,
        f"target     {format_target(about.name, about.summary)}, {about.num_parameters:,} parameters",
        *(f"form       {row.form}: {FILES[row.form]}, timed as {row.arm}" for row in plan.rows),
        *(f"beside     {spec.name}" for spec in plan.beside if config.time),
        f"folder     {config.folder}, {any_batch}",
    ]


def describe(config: ExportConfig) -> Description:
    """What there is to know of the target, learnt in a process of its own."""
    about: Description = decode(Description, run_job(_job(config, "describe"), timeout_s=config.timeout_s))
    return about


def _job(config: ExportConfig, job: str, **extra: Any) -> dict[str, Any]:
    common = {"target": config.target, "options": config.workload, "inputs": list(config.input), "seed": config.seed}
    weights = str(config.weights.resolve()) if config.weights else ""
    return {"job": job, **common, "mode": "infer", "weights": weights, **extra}


class _Run:
    """One export under way."""

    def __init__(
        self,
        config: ExportConfig,
        emit: Emit,
        about: Description,
        plan: Plan,
        sources: dict[str, str],
        claim: Claim,
    ) -> None:
        self.config, self.emit, self.about, self.plan = config, emit, about, plan
        self.rows: list[FormRow] = list(plan.rows)
        self.gates: dict[str, Gate] = {}
        self.measurements: list[Measurement] = []
        self.telemetry: list[Telemetry] = []
        self.failures: list[ArmFailure] = []
        self.began, self.done, self.delivered = time.time(), 0, False
        self.units = 2 * len(plan.rows) + (config.processes if config.time else 0)
        self.named = sources.get("formats", "default") != "default"
        self.notes = [*plan.told, *_lost(plan.rows), *([QUICK_GIVES_UP] if config.quick and config.time else [])]
        resolved = dataclasses.replace(config, arm=plan.asked.name, batch=plan.batch)
        self.folder: Path = claim.take()
        self.record = begin(TASK, claim.name, resolved, sources, capture())

    def go(self) -> RunRecord:
        """The finished record, on disk whatever happens."""
        try:
            self._work()
        except KeyboardInterrupt:
            self._close("interrupted", "Interrupted; what was found until then is here.")
            raise
        except HotlapError as error:
            self._close("failed", str(error))
            raise
        return self._close("complete")

    def _work(self) -> None:
        self._save()
        with staged(self.config.folder) as part:
            for place in range(len(self.rows)):
                self._step(place, "making", lambda row: self._make(row, part))
                self._step(place, "checking", lambda row: self._reload(row, part))
            if self._right():
                self._deliver(part)
        self._save()
        if self.config.time and self._right():
            for process in range(self.config.processes):
                self._time(process)
                self._save()

    def _right(self) -> list[FormRow]:
        return [row for row in self.rows if row.status == "right"]

    def _step(self, place: int, doing: str, work: Any) -> None:
        """One process for one form; what goes wrong in it is the form's, and the others go on."""
        row = self.rows[place]
        self.emit(events.advance(TASK, self.done, self.units, f"{doing} {row.form}"))
        self.done += 1
        if row.status in ("wanted", "made"):
            try:
                row = work(row)
            except HotlapError as error:
                row = dataclasses.replace(row, status=_status(error), why=error.paragraph())
                self.emit(events.warn(f"{row.form} was not made: {row.why}"))
        self.rows[place] = row
        self._save()

    def _make(self, row: FormRow, part: Path) -> FormRow:
        dynamic = self.config.dynamic_batch
        job = _job(
            self.config, "deploy", arm=row.arm, batch=self.plan.batch, dynamic=dynamic, folder=str(part.resolve())
        )
        made: Made = decode(Made, run_job(job, timeout_s=self.config.timeout_s))
        row = dataclasses.replace(
            row,
            status="made",
            files=made.files,
            inputs=made.inputs,
            outputs=made.outputs,
            kept=made.kept,
            make_s=made.seconds,
        )
        if row.warning:
            self.notes.append(row.warning)
            self.emit(events.warn(row.warning))
        return row

    def _reload(self, row: FormRow, part: Path) -> FormRow:
        file = part.resolve() / row.files[0].name
        job = _job(self.config, "reload", arm=row.arm, file=str(file), sizes=self._gate_sizes())
        found: Reloaded = decode(Reloaded, run_job(job, timeout_s=self.config.timeout_s))
        gate = found.gate
        self.gates[row.arm] = gate
        self.emit(events.note(f"{row.form}: {'right' if gate.passed else 'WRONG ANSWER'}"))
        worst = max(gate.checks, key=lambda check: (not check.passed, check.error / (check.allowed or 1.0)))
        return dataclasses.replace(
            row,
            status="right" if gate.passed else "wrong",
            load_s=found.load_s,
            error=worst.error,
            allowed=worst.allowed,
        )

    def _gate_sizes(self) -> list[int]:
        """A fixed batch is judged as it is; a free one at a small batch and at a single sample."""
        if not self.config.dynamic_batch:
            return [self.plan.batch]
        return sorted({min(self.config.gate_batch, self.plan.batch), 1}, reverse=True)

    def _deliver(self, part: Path) -> None:
        about, config = self.about, self.config
        keep_only(part, [file.name for row in self._right() for file in row.files])
        target = {"target": config.target, "name": about.name, "summary": about.summary, "options": config.workload,
                  "weights": str(config.weights) if config.weights else f"fresh, seed {config.seed}"}  # fmt: skip
        manifest = make_manifest(
            self._right(),
            target=target,
            arm=self.plan.eager,
            batch=self.plan.batch,
            dynamic=config.dynamic_batch,
            where=self.record.environment,
        )
        write_atomic(part / PAGE, make_page(manifest, self._right()))
        write_atomic(part / MANIFEST, json.dumps(encode(manifest), indent=1, allow_nan=False) + "\n")
        publish(part, config.folder)
        self.delivered = True

    def _time(self, process: int) -> None:
        config = self.config
        text = f"process {process + 1} of {config.processes}"

        def listen(detail: str, done: float, total: float) -> None:
            share = done / total if total else 0.0
            self.emit(events.advance(TASK, self.done + share, self.units, f"{text}: {detail}"))

        protocol = Protocol(
            process=process,
            repeats=config.repeats,
            seconds=config.seconds,
            max_seconds=config.max_seconds,
            warmup_seconds=config.warmup_seconds,
            transfer=False,
            began_at=self.began,
        )
        gone = {failure.arm for failure in self.failures}
        files = {row.arm: str((config.folder / row.files[0].name).resolve()) for row in self._right()}
        arms = [name for name in (*(spec.name for spec in self.plan.beside), *files) if name not in gone]
        job = _job(config, "timing", arms=arms, batch=self.plan.batch, protocol=encode(protocol), files=files)
        found: Timings = decode(Timings, run_job(job, timeout_s=config.timeout_s, listen=listen))
        self.done += 1
        self.measurements += found.measurements
        self.telemetry += found.telemetry
        self.failures += found.failures

    def _snapshot(self) -> RunRecord:
        failed = {failure.arm: failure for failure in reversed(self.failures)}
        names = [*(spec.name for spec in self.plan.beside), *(row.arm for row in self._right())]
        arms = [
            build_arm(
                parse_arm(name),
                "arm" if place else "baseline",
                self.plan.batch,
                self.measurements,
                self.telemetry,
                footprint=None,
                failure=failed.get(name),
            )
            for place, name in enumerate(names)
        ]
        found = {
            "out": str(self.config.folder),
            "delivered": self.delivered,
            "dynamic_batch": self.config.dynamic_batch,
            "baseline": self.plan.eager.name,
            "forms": [{**encode(row), "size_bytes": row.size_bytes} for row in self.rows],
        }
        return dataclasses.replace(
            self.record,
            arms=arms if self.measurements else [],
            comparisons=compare_arms(arms, self.gates, self.measurements, self.config.min_effect),
            gates=list(self.gates.values()),
            measurements=list(self.measurements),
            telemetry=list(self.telemetry),
            extra={"about": encode(self.about), "export": found},
            notes=list(self.notes),
        )

    def _save(self) -> None:
        self.record = save(self._snapshot(), self.folder)

    def _close(self, status: str, why: str = "") -> RunRecord:
        """The finished record, with its verdict, on disk."""
        record = self._snapshot()
        verdict = give_verdict(
            self.rows, self.gates, record.comparisons, self.failures, out=self.config.folder, named=self.named
        )
        if status != "complete":
            verdict = dataclasses.replace(verdict, outcome=status, headline=why, exit_code=1)
        notes = [*record.notes, *([why] if why else [])]
        record = dataclasses.replace(record, status=status, finished_at=now(), verdict=verdict, notes=notes)
        self.record = save(record, self.folder)
        return self.record


def _status(error: HotlapError) -> str:
    if error.exit_code == EXIT_OUT_OF_MEMORY:
        return OUT_OF_MEMORY
    return "skipped" if isinstance(error, EnvironmentUnusable) and not isinstance(error, WorkerDied) else "failed"


def _lost(rows: list[FormRow]) -> list[str]:
    return [f"{row.form} goes without {', '.join(row.lost)}: it has no place for it." for row in rows if row.lost]
