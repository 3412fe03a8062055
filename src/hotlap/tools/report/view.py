"""A record as the page shows it: every word and number of the template, decided here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from hotlap.base.format import format_count, format_error, format_list, format_ms, format_ratio
from hotlap.records.measurement import Gate
from hotlap.records.run import RunRecord
from hotlap.tools.report.charts import breach, breach_scale, breach_share
from hotlap.tools.report.doctor import FindingGroup, doctor_headline, finding_groups
from hotlap.tools.report.figures import (
    Figure,
    batch_figure,
    break_even_figure,
    ceiling_figures,
    distribution_figures,
    forest_figure,
    loader_figure,
    memory_figure,
    timeline_figures,
)
from hotlap.tools.report.loader import refusals
from hotlap.tools.report.method import (
    Setting,
    command_line,
    environment_rows,
    limits,
    method_sentences,
    settings,
)
from hotlap.tools.report.profile import ProfileView, profile_view
from hotlap.tools.report.speed import SpeedRow, headline_comparisons, speed_rows, tone_of, withheld
from hotlap.tools.report.svg import Scale
from hotlap.tools.report.training import training_figures
from hotlap.tools.report.trust import Fact, trust_facts
from hotlap.tools.report.tune import SHOWN_ROWS, TuneRow, tune_facts, tune_refusals, tune_rows

SHOWN_CHECKS = 3
"""Checks of one gate in sight, besides those that failed; the rest, further from their limits, are folded."""
ALERTS = {
    "interrupted": "This run was interrupted. What it had measured by then is below; it is not a finished result.",
    "failed": "This run failed. What it had measured by then is below; it is not a result.",
    "running": "This run is still going on, or was cut off without a word. What follows is not a finished result.",
}


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


@dataclass(frozen=True, kw_only=True)
class RunView:
    """One record's section of the page."""

    anchor: str
    number: int
    name: str
    kind: str
    badge: str
    tone: str
    headline: str
    subject: list[tuple[str, str]]
    alert: str
    lines: list[str]
    facts: list[Fact]
    notes: list[str]
    speed: list[SpeedRow] = field(default_factory=list)
    has_energy: bool = False
    forest: Figure | None = None
    distributions: list[Figure] = field(default_factory=list)
    timeline: list[Figure] = field(default_factory=list)
    memory: Figure | None = None
    memory_notes: list[str] = field(default_factory=list)
    gates: list[GateView] = field(default_factory=list)
    break_even: Figure | None = None
    break_even_text: str = ""
    race: list[Candidate] = field(default_factory=list)
    findings: list[FindingGroup] = field(default_factory=list)
    training: list[Figure] = field(default_factory=list)
    ceilings: list[Figure] = field(default_factory=list)
    loader: Figure | None = None
    refusals: list[str] = field(default_factory=list)
    tune: list[TuneRow] = field(default_factory=list)
    tune_folded: list[TuneRow] = field(default_factory=list)
    tune_facts: list[str] = field(default_factory=list)
    batch_curve: Figure | None = None
    profile: ProfileView | None = None
    environment: list[tuple[str, str]]
    settings: list[Setting]
    method: list[str]
    limits: list[str]
    command: str
    path: str


def run_view(record: RunRecord, place: int) -> RunView:
    """Everything the page says about one record."""
    badge, tone = badge_of(record)
    rows = speed_rows(record)
    even = record.extra.get("break_even")
    tried = tune_rows(record)
    return RunView(
        anchor=f"run-{place + 1}",
        number=place + 1,
        name=f"{record.name} {record.config.get('mode', '')}".strip(),
        kind=record.kind,
        badge=badge,
        tone=tone,
        headline=headline_of(record),
        subject=subject_of(record),
        alert=alert_of(record),
        lines=list(record.verdict.lines) if record.verdict else [],
        facts=trust_facts(record),
        notes=list(record.notes),
        speed=rows,
        has_energy=any(arm.energy_j_per_sample is not None for arm in record.arms),
        forest=forest_figure(record),
        distributions=distribution_figures(record),
        timeline=timeline_figures(record),
        memory=memory_figure(record),
        memory_notes=_memory_notes(record),
        gates=gate_views(record.gates),
        break_even=break_even_figure(record),
        break_even_text=str(even.get("text") or "") if isinstance(even, dict) else "",
        race=race_rows(record.extra.get("tuned_cpu")),
        findings=finding_groups(record.checks),
        training=training_figures(record),
        ceilings=ceiling_figures(record),
        loader=loader_figure(record),
        refusals=refusals(record) or tune_refusals(record),
        tune=tried[:SHOWN_ROWS],
        tune_folded=tried[SHOWN_ROWS:],
        tune_facts=tune_facts(record),
        batch_curve=batch_figure(record),
        profile=profile_view(record),
        environment=environment_rows(record),
        settings=settings(record),
        method=method_sentences(record),
        limits=limits(record),
        command=command_line(record),
        path=record.path,
    )


def alert_of(record: RunRecord) -> str:
    """What a reader must know before anything else about a run that did not come to its end."""
    if record.kind == "train" and record.status == "interrupted":
        return "This training was stopped before its end; 'hotlap train --resume' goes on from its last checkpoint."
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


def _memory_notes(record: RunRecord) -> list[str]:
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
    if len(records) == 1:
        return str(records[0].config.get("target") or records[0].name)
    return f"{format_count(len(records), 'run')} side by side"
