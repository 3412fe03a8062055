"""The lap itself: stage after stage, each with its record; the lap's own is on disk before and after every one."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from hotlap.base import events
from hotlap.base.errors import ConfigError, HotlapError
from hotlap.base.events import Emit, Event, ignore
from hotlap.base.format import format_list, format_s
from hotlap.measure.arms import ArmSpec
from hotlap.measure.nursery import COMPILERS, Nursery
from hotlap.measure.process import lent
from hotlap.records.codec import encode
from hotlap.records.environment import Environment, capture
from hotlap.records.lap import (
    DONE,
    FAILED,
    INTERRUPTED,
    PENDING,
    RUNNING,
    SKIPPED,
    Lap,
    LapStage,
    lap_of,
    newest_record,
    stage_records,
)
from hotlap.records.measurement import Verdict
from hotlap.records.run import STAGES as STAGES_FOLDER
from hotlap.records.run import RunRecord, begin, now, run_folder, save
from hotlap.targets import short_name, told_of_loss
from hotlap.tools.lap.config import QUICK_GIVES_UP, LapConfig, find_lap
from hotlap.tools.lap.paste import paste_of, use_commands
from hotlap.tools.lap.stages import STAGES, Round, Skip, Stage, StageFailed
from hotlap.tools.lap.story import draw
from hotlap.tools.lap.summary import advice_rows, give_verdict, table_rows

REPORT = "report"


def lap(
    config: LapConfig,
    emit: Emit = ignore,
    *,
    sources: dict[str, str] | None = None,
    stages: Sequence[Stage] = STAGES,
) -> RunRecord:
    """The record of the whole round; a lap that is resumed runs only what it has not done.

    ``stages`` stand in for the real ones in tests.
    """
    run = _Run(config, emit, sources or {}, stages)
    emit(events.start("lap", run.total, f"lap of {config.target}"))
    try:
        if stages is not STAGES:
            return run.go()
        with Nursery(COMPILERS) as nursery, lent(nursery):
            return run.go()
    finally:
        emit(events.finish("lap"))


def preview(config: LapConfig) -> list[str]:
    """The stages of a lap with this config; nothing is loaded or measured."""
    wanted = [stage for stage in STAGES if stage.wanted(config)]
    lines = [f"stage {place}   {stage.name}: {stage.what}" for place, stage in enumerate(wanted, start=1)]
    lines += [f"stage {len(wanted) + 1}   {REPORT}: one page of all of it"] if config.report else []
    return [*lines, f"budget    {config.budget} for all of it", *([QUICK_GIVES_UP] if config.quick else [])]


class _Run:
    """One lap under way."""

    def __init__(self, config: LapConfig, emit: Emit, sources: dict[str, str], stages: Sequence[Stage]) -> None:
        self.config, self.emit = config, emit
        self.stages = [stage for stage in stages if stage.wanted(config)]
        self.total = len(self.stages) + config.report
        self.began: float | None = None
        self.notes = [*([QUICK_GIVES_UP] if config.quick else []), *told_of_loss(config.input, config.mode)]
        before = self._begin(sources)
        self.round = Round(config, self.folder / STAGES_FOLDER, self._hear)
        self.found = Lap(
            target=config.target,
            mode=config.mode,
            source=_source(config.target),
            stages=[before.get(s.name, LapStage(name=s.name, what=s.what)) for s in self.stages],
            budget_s=config.budget_s,
        )
        if config.resume:
            self._take_up()
        self._save()

    def _begin(self, sources: dict[str, str]) -> dict[str, LapStage]:
        """A new record, or that of the lap that goes on, with the stages it has."""
        config, here = self.config, capture(import_torch=False)
        name = config.name or f"{short_name(config.target)}-lap"
        if not config.resume:
            self.folder = run_folder(config.runs, name)
            self.record = begin("lap", name, config, sources, here)
            return {}
        before = find_lap(config.resume, config.runs)
        _check_resumable(before, here, config.resume)
        _check_source(lap_of(before), config)
        self.folder = Path(before.path).parent
        fresh = begin("lap", before.name, config, sources, here)
        self.record = dataclasses.replace(fresh, started_at=before.started_at, command=before.command)
        return {stage.name: stage for stage in lap_of(before).stages}

    def _take_up(self) -> None:
        """Takes over what the stages have left: done ones, and such as were done but could not say so any more.

        What came after an essential stage that must run again rests on what it found then, and is done again too.
        """
        kept = stage_records(dataclasses.replace(self._snapshot(), path=str(self.folder / "record.json")))
        rests = True
        for stage, real in zip(self.found.stages, self.stages, strict=True):
            record = kept.get(stage.name) if stage.status == DONE else newest_record(self.folder, stage.name)
            whole = record is not None and record.status == "complete" and stage.status != FAILED
            rests = rests and (whole or not real.essential or stage.status == SKIPPED)
            if record is not None and whole and rests:
                self._mark(stage.name, status=DONE, record=self._path(record), headline=_headline(record))
                self.round.records[stage.name] = record
                self.round.seconds[stage.name] = stage.seconds
            elif stage.status in (DONE, SKIPPED):
                self._mark(stage.name, status=PENDING, record="")
        done = list(self.round.records)
        self.notes.append(f"Resumed with {format_list(done)} done." if done else "Resumed; nothing was done yet.")

    def go(self) -> RunRecord:
        for place, stage in enumerate(self.stages, start=1):
            if stage.name not in self.round.records:
                self._run_stage(place, stage)
        self._sum_up()
        self._close("complete", give_verdict(self.found, self.round))
        if self.config.report:
            self._report()
        return self.record

    def _run_stage(self, place: int, stage: Stage) -> None:
        """One stage from its first word to its place in the record."""
        self.doing = f"stage {place} of {self.total}, {stage.name}"
        self.place, self.began = place, time.monotonic()
        left = newest_record(self.folder, stage.name)
        self.round.unfinished = left if left is not None and left.status != "complete" else None
        self._mark(stage.name, status=RUNNING, why="")
        self._save()
        self._tell()
        try:
            record = stage.run(self.round)
        except Skip as skip:
            self._mark(stage.name, status=SKIPPED, why=str(skip), seconds=self._elapsed())
            self.emit(events.note(f"{self.doing}: skipped, {skip}"))
        except KeyboardInterrupt:
            self._mark(stage.name, status=INTERRUPTED, seconds=self._elapsed())
            self._give_up("interrupted", f"stopped in {self.doing}", exit_code=1)
            self.emit(events.warn(f"Stopped in {self.doing}. {self._how_to_go_on()}"))
            raise
        except HotlapError as error:
            self._failed(stage, error)
        else:
            self.round.records[stage.name] = record
            path, seconds = self._path(record), self._elapsed()
            self.round.seconds[stage.name] = seconds
            self._mark(stage.name, status=DONE, record=path, seconds=seconds, headline=_headline(record))
            self.emit(events.note(f"{self.doing} ({format_s(seconds)}): {_headline(record)}"))
        self.began = None
        self._save()

    def _failed(self, stage: Stage, error: HotlapError) -> None:
        """Tells a failure; one of an essential stage ends the lap, with what is done kept and the way to go on."""
        left = newest_record(self.folder, stage.name)
        path = self._path(left) if left is not None else ""
        self._mark(stage.name, status=FAILED, why=str(error), record=path, seconds=self._elapsed())
        if not stage.essential:
            self.emit(events.warn(f"{self.doing} failed, and the lap goes on without it: {error}"))
            return
        self._give_up("failed", f"{self.doing}, failed: {error}", exit_code=error.exit_code)
        cure = f"{error.remedy.rstrip('.')}. " if error.remedy else ""
        raise StageFailed(
            f"{self.doing}, failed: {error.what}",
            expected=error.expected,
            remedy=cure + self._how_to_go_on(),
            exit_code=error.exit_code,
        ) from error

    def _how_to_go_on(self) -> str:
        done = [stage.name for stage in self.found.stages if stage.status == DONE]
        kept = f"Done and kept: {format_list(done)}. " if done else ""
        return f"{kept}'hotlap lap --resume {self.folder}' goes on from there"

    def _give_up(self, status: str, why: str, *, exit_code: int) -> None:
        self._close(status, Verdict(outcome=status, headline=why, exit_code=exit_code, lines=[self._how_to_go_on()]))

    def _sum_up(self) -> None:
        """What the stages came to together."""
        found = self.round
        baseline = found.records.get("baseline")
        winner = found.winner if baseline else None
        is_measured = "bench" in found.records and not found.stays
        self.found = dataclasses.replace(
            self.found,
            baseline=found.baseline.name if baseline else "",
            batch=found.batch if baseline else None,
            tuned=winner[0].name if winner else "",
            tuned_batch=winner[1] if winner else None,
            table=table_rows(found) if baseline else [],
            advice=advice_rows(found),
            paste=self._paste(*winner) if winner and is_measured else "",
            commands=use_commands(self.config, winner[0], has_card=bool(self.record.environment.gpus))
            if winner and is_measured
            else [],
            profile=_profile_path(found),
        )

    def _paste(self, arm: ArmSpec, batch: int) -> str:
        volumes, several = _has_volumes(self.round), len(self.config.input) > 1
        return paste_of(arm, batch, self.config.mode, volumes=volumes, several=several)

    def _report(self) -> None:
        """Draws the page from the finished record; a failure leaves the record as it is and is told."""
        self.doing, self.place, self.began = (
            f"stage {self.total} of {self.total}, {REPORT}",
            self.total,
            time.monotonic(),
        )
        self._tell()
        try:
            page = draw(self.record, self.emit)
        except HotlapError as error:
            text = f"{self.doing}, failed: {error} {self._how_to_go_on()}"
            self.emit(events.warn(text))
            self.notes.append(text)
        else:
            self.found = dataclasses.replace(self.found, report=os.path.relpath(page, self.folder))
        self._save(self.record.status, self.record.verdict)

    def _hear(self, event: Event) -> None:
        """Hands on what a stage tells; its progress also moves the lap's own time."""
        if event.kind == "result":
            return
        self.emit(event)
        if event.kind == "advance":
            self._tell()

    def _tell(self) -> None:
        left = self.config.budget_s - self.round.spent_s - self._elapsed()
        time_left = f"{format_s(left)} of the budget left" if left > 0 else "the budget is used up"
        self.emit(events.advance("lap", self.place - 1, self.total, f"{self.doing}: {time_left}"))

    def _elapsed(self) -> float:
        return time.monotonic() - self.began if self.began is not None else 0.0

    def _path(self, record: RunRecord) -> str:
        return os.path.relpath(record.path, self.folder)

    def _mark(self, name: str, **changes: object) -> None:
        stages = [dataclasses.replace(s, **changes) if s.name == name else s for s in self.found.stages]  # type: ignore[arg-type]
        self.found = dataclasses.replace(self.found, stages=stages)

    def _snapshot(self) -> RunRecord:
        return dataclasses.replace(self.record, extra={"lap": encode(self.found)}, notes=list(self.notes))

    def _save(self, status: str = "running", verdict: Verdict | None = None) -> None:
        self.record = save(dataclasses.replace(self._snapshot(), status=status, verdict=verdict), self.folder)

    def _close(self, status: str, verdict: Verdict) -> None:
        self.record = dataclasses.replace(self.record, finished_at=now())
        self._save(status, verdict)


def _headline(record: RunRecord) -> str:
    return record.verdict.headline if record.verdict else record.status


def _profile_path(lap: Round) -> str:
    """Where the tuned profile lies: in the store, or beside the search's record."""
    record = lap.records.get("tune")
    found = record.extra["tune"] if record else {}
    if not found.get("profile") or record is None:
        return ""
    return str(found.get("stored") or Path(record.path).parent / "tuned.json")


def _has_volumes(lap: Round) -> bool:
    """Whether the model has 3-D convolutions, as the search saw it."""
    record = lap.records.get("tune")
    return bool(record and record.extra["tune"].get("about", {}).get("has_volumes"))


def _source(target: str) -> str:
    """A digest of the file that a target names, by its path or as a module of this folder; '' where it names none."""
    named = target.rpartition(":")[0]
    module = named.replace(".", "/")
    for file in [named] if named.endswith(".py") else [f"{module}.py", f"{module}/__init__.py"]:
        with contextlib.suppress(OSError):  # whoever loads it says why
            return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
    return ""


def _check_source(before: Lap, config: LapConfig) -> None:
    """Refuses to put stages of two models together."""
    now = _source(config.target)
    if before.source and now != before.source:
        how = "is not what it was" if now else f"cannot be read in {str(Path.cwd())!r}"
        raise ConfigError(
            f"resume = {config.resume!r} cannot go on: the file of {config.target!r} {how}",
            remedy="Its stages were measured with the file of then; start a new lap",
        )


def _check_resumable(before: RunRecord, here: Environment, asked: str) -> None:
    """Refuses a lap that still runs, or whose stages were measured under other conditions."""
    if before.status == "running":
        raise ConfigError(f"resume = {asked!r} is still running (process {before.pid})", remedy="Wait for its end")
    was = before.environment
    pairs = {
        "processor": (was.cpu_model, here.cpu_model),
        "usable cores": (was.usable_cores, here.usable_cores),
        "cards": (", ".join(g.name for g in was.gpus), ", ".join(g.name for g in here.gpus)),
        "driver": (was.driver, here.driver),
        "torch": (was.packages.get("torch", ""), here.packages.get("torch", "")),
    }
    changed = [f"{name} was {old or 'none'}, is {new or 'none'}" for name, (old, new) in pairs.items() if old != new]
    if changed:
        raise ConfigError(
            f"resume = {asked!r} cannot go on: {'; '.join(changed)}",
            remedy="Its stages were measured under other conditions; start a new lap",
        )
