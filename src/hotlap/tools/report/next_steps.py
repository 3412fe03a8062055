"""What to do next, from what the records leave open: repairs first, then measurements, then the profile's advice."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hotlap.base.errors import UsageError
from hotlap.base.format import format_count, format_gain, format_number
from hotlap.measure.arms import ArmSpec, parse_arm
from hotlap.records.run import RunRecord
from hotlap.tools.report.document import Answer
from hotlap.tools.report.lap import found_of
from hotlap.tools.report.method import command_line
from hotlap.tools.report.speed import headline_comparisons
from hotlap.tools.report.trust import FEW_PROCESSES, replication
from hotlap.tools.report.view import ENDS

MOST = 6


def next_steps(records: Sequence[RunRecord]) -> list[Answer]:
    """At most ``MOST`` steps, the most pressing first; never none."""
    steps = [*_taken_home(records), *_unfinished(records), *_repairs(records), *_open_questions(records)]
    steps += _advice(records)
    if len(steps) < MOST:
        steps += _missing(records)
    found = list({step.text: step for step in steps}.values())[:MOST]
    return found or [Answer(text="Nothing is left open by these records.", tone="good")]


def _target(record: RunRecord) -> str:
    return str(record.config.get("target") or "TARGET")


def _typed(target: str) -> str:
    """A target as a shell takes it."""
    return shlex.quote(target)


def same_model(records: Sequence[RunRecord]) -> str:
    """The target of these records with the inputs and options that make it the same model, as a shell takes it."""
    known = next((record for record in records if record.config.get("target")), None)
    if known is None:
        return next((_drawn(record) for record in records if record.kind == "splat"), "TARGET")
    return " ".join([_typed(_target(known)), *_inputs(known), *_options(known)])


def _drawn(record: RunRecord) -> str:
    """A splat training's scene as a target."""
    scene = str(record.config.get("scene"))
    return "splat" if scene == "drawn" else f"splat --set {shlex.quote(f'workload.scene={scene}')}"


def command_for(verb: str, records: Sequence[RunRecord]) -> str:
    """``hotlap VERB`` on the model of these records, in the mode that they are about."""
    mode = next((str(m) for record in records if (m := record.config.get("mode"))), "train")
    flag = {"tune": "--for"}.get(verb, "--mode")
    return f"hotlap {verb} {same_model(records)}" + (f" {flag} infer" if mode == "infer" else "")


def _inputs(record: RunRecord) -> list[str]:
    return [word for shape in record.config.get("input") or [] for word in ("--input", shlex.quote(str(shape)))]


def _options(record: RunRecord) -> list[str]:
    options = (record.config.get("workload") or {}).items()
    return [word for name, value in options for word in ("--set", shlex.quote(f"workload.{name}={value}"))]


def _taken_home(records: Sequence[RunRecord]) -> Iterator[Answer]:
    """A lap that found something faster says how to use it, a trained scene how to look at it."""
    for record in records:
        if record.kind == "splat" and record.status == "complete":
            place = str(Path(record.path).parent)
            command = f"hotlap splat view {shlex.quote(place)}"
            yield Answer(text=f"Look at {place} in the browser.", tone="good", command=command)
        if record.verdict is not None and record.verdict.outcome == "faster":
            for command in found_of(record).get("commands") or []:
                yield Answer(text="Use what was found.", tone="good", command=str(command))


def _unfinished(records: Sequence[RunRecord]) -> Iterator[Answer]:
    for record in records:
        if record.status == "complete":
            if record.verdict is not None and record.verdict.outcome == "nothing found":
                text = f"Search once more when this is mended: {record.verdict.headline}."
                yield Answer(text=text, tone="bad", command=command_line(record))
            continue
        if record.status == "running":
            yield Answer(text=f"Wait for {record.kind} {record.name}, which is still running.", tone="warn")
            continue
        if record.kind == "train" and record.status == "interrupted":
            text, command = f"Let the training {record.name} go on.", f"hotlap train {_typed(_target(record))} --resume"
        elif record.kind == "splat" and record.status == "interrupted":
            place = shlex.quote(str(Path(record.path).parent))
            text, command = f"Let the training {record.name} go on.", f"hotlap splat train --out {place} --resume"
        elif record.kind == "tune" and (record.extra.get("tune") or {}).get("rows"):
            place = shlex.quote(str(Path(record.path).parent))
            text, command = f"Let the search {record.name} go on.", f"hotlap tune --resume {place}"
        else:
            how = ENDS.get(record.status, f"is {record.status}")
            text, command = f"Repeat {record.kind} {record.name}, which {how}.", command_line(record)
        yield Answer(text=text, tone="bad", command=command)


def _repairs(records: Sequence[RunRecord]) -> Iterator[Answer]:
    for record in records:
        for status, tone in (("FAIL", "bad"), ("WARN", "warn")):
            for check in record.checks:
                if check.status == status and check.fix:
                    yield Answer(text=f"{check.name}: {check.observed}", tone=tone, command=check.fix)


def _open_questions(records: Sequence[RunRecord]) -> Iterator[Answer]:
    for record in records:
        if record.kind != "bench":
            continue
        for gate in record.gates:
            if not gate.passed:
                text = f"Do not use {gate.arm} for {_target(record)}: its answer is wrong."
                yield Answer(text=text, tone="bad")
        verdicts = {c.verdict for c in headline_comparisons(record)}
        processes, _ = replication(record)
        if "inconclusive" in verdicts or (verdicts and 0 < processes < FEW_PROCESSES):
            had = format_count(processes, "process", "processes")
            why = "could not tell" if "inconclusive" in verdicts else f"had only {had}"
            yield Answer(
                text=f"Measure {record.name} again with more processes: this run {why}.",
                tone="warn",
                command=_bench_again(record, max(16, 2 * processes)),
            )


def _bench_again(record: RunRecord, processes: int) -> str:
    """The bench's own command without --quick, or one that names its arms where another verb ran it."""
    words = [word for word in command_line(record).split(" ") if word != "--quick"]
    if "bench" not in words:
        arms = ",".join(arm.name for arm in record.arms if arm.role != "context")
        words = ["hotlap", "bench", _typed(_target(record)), "--arms", shlex.quote(arms)]
        words += _inputs(record)
        for flag in ("mode", "batch"):
            words += [f"--{flag}", str(record.config[flag])] if record.config.get(flag) else []
        words += _options(record)
    return " ".join([*words, "--processes", str(processes)])


def _advice(records: Sequence[RunRecord]) -> Iterator[Answer]:
    """The last profile's advice that no lap put to the test, no search chose, and that held where it was checked."""
    last: RunRecord | None = None
    for record in records:
        found = record.extra.get("profile")
        if record.kind == "profile" and isinstance(found, dict) and found.get("analysis"):
            last = record
    if last is None:
        return
    tested = {piece.get("name") for record in records for piece in found_of(record).get("advice") or []}
    for row in (last.extra["profile"].get("advice") or [])[:3]:
        measured = row.get("measured")
        if row.get("name") in tested or _is_chosen(str(row.get("arm") or ""), last, records):
            continue
        if row.get("right") is False or (measured is not None and measured < 1):
            continue
        estimate = f"{format_gain(row['gain'], bool(row.get('at_most')))}, estimated"
        gain = f"measured {format_number(measured)}x" if measured else estimate
        yield Answer(text=f"Try {row['name']}: {gain}. {row['why']}", command=row.get("command") or "")


def _is_chosen(advised: str, profiled: RunRecord, records: Sequence[RunRecord]) -> bool:
    """Whether a search has changed every setting of the profiled arm that the advised one would change."""
    subject = [profiled.config.get(key) for key in ("target", "mode")]
    for record in records:
        winner = (record.extra.get("tune") or {}).get("winner")
        if not winner or not advised or [record.config.get(key) for key in ("target", "mode")] != subject:
            continue
        with contextlib.suppress(UsageError):  # an arm that this version does not know
            today = _settings(str(profiled.config.get("arm")), profiled.config.get("batch"))
            wanted = _settings(advised, profiled.config.get("batch")).items() - today.items()
            changed = _settings(winner["arm"], winner["batch"]).items() - today.items()
            if {key for key, _ in wanted} <= {key for key, _ in changed}:
                return True
    return False


def _settings(arm: str, batch: int | None) -> dict[str, Any]:
    """What an arm sets, its batch included."""
    spec = parse_arm(arm)
    return {**dataclasses.asdict(spec), "batch": spec.batch or batch}


def _chosen(records: Sequence[RunRecord]) -> Iterator[Answer]:
    """The bench of what a search chose, at the batch that it chose."""
    for record in records:
        found = record.extra.get("tune") or {}
        winner, before = found.get("winner"), (found.get("start") or {}).get("batch")
        with contextlib.suppress(UsageError):  # an arm that this version does not know
            if not winner:
                continue
            spec, batch = parse_arm(winner["arm"]), winner["batch"]
            plain = ArmSpec(device=spec.device, index=spec.index)
            if spec == plain and before in (None, batch):
                continue  # it chose what was there
            if spec == plain:  # and another batch
                spec, batch = dataclasses.replace(spec, batch=batch), before
            arms = shlex.quote(f"{plain.name},{spec.name}")
            command = f"{command_for('bench', [record])} --arms {arms} --batch {batch}"
            yield Answer(text="Measure what the search chose, beside the plain arm.", command=command)


def _missing(records: Sequence[RunRecord]) -> Iterator[Answer]:
    """The verb that would say what these records cannot."""
    kinds = {record.kind for record in records}
    profile, tune = (command_for(verb, records) for verb in ("profile", "tune"))
    if "bench" not in kinds:
        yield from _chosen(records)
    if kinds & {"bench", "train"} and not kinds & {"profile", "tune", "lap"}:
        yield Answer(text="See where the time goes.", command=profile)
        yield Answer(text="Search for a faster configuration.", command=tune)
    if "profile" in kinds and not kinds & {"tune", "lap"}:
        yield Answer(text="Let a search try these and their combinations.", command=tune)
