"""A record in words: its badge, its sentence, what was measured, its gates; decided here for every format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from hotlap.base.format import format_count, format_error, format_list, format_ms, format_ratio
from hotlap.records.measurement import Gate
from hotlap.records.run import RunRecord
from hotlap.tools.report.charts import breach, breach_scale, breach_share
from hotlap.tools.report.doctor import doctor_headline
from hotlap.tools.report.speed import headline_comparisons, tone_of, withheld
from hotlap.tools.report.svg import Scale

SHOWN_CHECKS = 3
"""Checks of one gate in sight, besides those that failed; the rest, further from their limits, are folded."""
ALERTS = {
    "interrupted": "This run was interrupted. What it had measured by then is below; it is not a finished result.",
    "failed": "This run failed. What it had measured by then is below; it is not a result.",
    "running": "This run is still going on, or was cut off without a word. What follows is not a finished result.",
}


TRAININGS = {"train": "train", "splat": "splat train"}
"""The kinds of records that are trainings, with their verbs."""
ENDS = {"interrupted": "was interrupted", "failed": "failed", "running": "is still running"}


@dataclass(frozen=True, kw_only=True)
class CheckRow:
    """One numeric check of the gate."""

    name: str
    error: str
    allowed: str
    passed: bool
    bar: Markup
    detail: str


@dataclass(frozen=True, kw_only=True)
class GateView:
    """The gate of one arm, worst check first."""

    arm: str
    passed: bool
    reference: str
    shown: list[CheckRow]
    folded: list[CheckRow]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One entrant of the race for the tuned CPU baseline."""

    arm: str
    time: str
    gate: str
    tone: str
    chosen: bool


def alert_of(record: RunRecord) -> str:
    """What a reader must know before anything else about a run that did not come to its end."""
    if record.kind in TRAININGS and record.status == "interrupted":
        command = f"hotlap {TRAININGS[record.kind]} --resume"
        return f"This training was stopped before its end; '{command}' goes on from its last checkpoint."
    return ALERTS.get(record.status, "" if record.status == "complete" else f"This run's status is {record.status}.")


def badge_of(record: RunRecord) -> tuple[str, str]:
    """The run in a word or two, with its tone; an unfinished run or a wrong answer outranks any speed."""
    if record.status != "complete":
        return record.status, tone_of(record.status)
    if any(not gate.passed for gate in record.gates):
        return "gate failed", "bad"
    if record.verdict is not None:
        words = record.verdict.outcome.replace("_", " ")
        return words, tone_of(words)
    if record.kind == "doctor":
        worst = {check.status for check in record.checks}
        return (
            ("failed", "bad") if "FAIL" in worst else ("warnings", "warn") if "WARN" in worst else ("healthy", "good")
        )
    verdicts = [c.verdict for c in headline_comparisons(record)]
    return (verdicts[0], tone_of(verdicts[0])) if len(set(verdicts)) == 1 else ("measured", "muted")


def headline_of(record: RunRecord) -> str:
    """The record's own sentence, or the one its numbers support."""
    if record.verdict is not None and record.verdict.headline:
        return record.verdict.headline
    if record.kind == "doctor":
        return doctor_headline(record)
    if record.kind == "train":
        return f"{record.name}: the training {record.status}; its notes say why."
    if record.status != "complete":
        processes = len({m.process for m in record.measurements if m.quantity == "wall"})
        if record.kind != "bench":
            return f"{record.name}: {record.status}; no verdict."
        left = format_count(processes, "process", "processes")
        return f"{record.name}: {record.status} with samples of {left}; no verdict."
    shown = [c for c in headline_comparisons(record) if not withheld(record, c.arm, c.baseline)]
    if shown:
        best = max(shown, key=lambda c: c.ratio)
        return (
            f"{best.arm} is {format_ratio(best.ratio, best.low, best.high)} as fast as {best.baseline}: {best.verdict}."
        )
    times = [f"{arm.name} takes {format_ms(s.median)}" for arm in record.arms if (s := arm.summary("wall"))]
    return f"{format_list(times)}; nothing was compared." if times else f"{record.name}: no times were measured."


def subject_of(record: RunRecord) -> list[tuple[str, str]]:
    """What was measured, and on what."""
    config = record.config
    rows = [("target", config.get("target")), ("mode", config.get("mode")), ("batch", config.get("batch"))]
    found = [(name, str(value)) for name, value in rows if value not in (None, "")]
    return [*found, ("machine", record.environment.device_line()), ("when", record.started_at.replace("T", " "))]


def gate_views(gates: list[Gate]) -> list[GateView]:
    """Each gate with its checks, on one scale of error over allowed for all of them; red gates first."""
    scale = breach_scale([breach_share(c.error, c.allowed) for gate in gates for c in gate.checks], 150.0)
    return [_gate_view(gate, scale) for gate in sorted(gates, key=lambda gate: gate.passed)]


def _gate_view(gate: Gate, scale: Scale) -> GateView:
    ranked = sorted(gate.checks, key=lambda c: (c.passed, -breach_share(c.error, c.allowed)))
    rows = [
        CheckRow(
            name=check.name,
            error=format_error(check.error),
            allowed=format_error(check.allowed),
            passed=check.passed,
            bar=Markup(breach(check.error, check.allowed, scale)),
            detail=check.detail,
        )
        for check in ranked
    ]
    cut = SHOWN_CHECKS + sum(not row.passed for row in rows)
    return GateView(arm=gate.arm, passed=gate.passed, reference=gate.reference, shown=rows[:cut], folded=rows[cut:])


def race_rows(tuned: Any) -> list[Candidate]:
    """Who ran for the tuned CPU baseline, fastest first."""
    if not isinstance(tuned, dict):
        return []
    rows = sorted(tuned.get("candidates") or [], key=lambda c: c.get("median_ms") or float("inf"))
    return [
        Candidate(
            arm=str(c.get("arm", "")),
            time=format_ms(c.get("median_ms")),
            gate="right"
            if c.get("passed_gate")
            else "wrong answer"
            if c.get("passed_gate") is False
            else "not checked",
            tone="good" if c.get("passed_gate") else "bad" if c.get("passed_gate") is False else "muted",
            chosen=c.get("arm") == tuned.get("chosen"),
        )
        for c in rows
    ]


def memory_notes(record: RunRecord) -> list[str]:
    """The arms whose times hold the cost of memory that ran short."""
    return [
        f"{arm.name}: {format_count(arm.memory.num_alloc_retries, 'allocation')} retried, "
        f"{format_count(arm.memory.num_ooms, 'time')} out of memory; its times hold the cost of that."
        for arm in record.arms
        if arm.memory and (arm.memory.num_ooms or arm.memory.num_alloc_retries)
    ]


def page_title(records: list[RunRecord], title: str) -> str:
    """The title asked for, or one that names what is on the page."""
    if title:
        return title
    lap = next((record for record in records if record.kind == "lap"), None)
    if lap is not None:
        return f"A lap of {lap.config.get('target') or lap.name}"
    if len(records) == 1:
        return str(records[0].config.get("target") or records[0].name)
    return f"{format_count(len(records), 'run')} side by side"
