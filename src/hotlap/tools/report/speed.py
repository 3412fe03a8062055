"""The speed-up table: each arm's time beside the baseline's, and no speed-up for an arm that answers wrongly."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field, replace

from hotlap.base.format import (
    UNKNOWN,
    format_bytes,
    format_error,
    format_ms,
    format_ms_interval,
    format_number,
    format_ratio,
    format_s,
)
from hotlap.records.measurement import Arm, Comparison, Gate, GateCheck, Memory
from hotlap.records.run import RunRecord
from hotlap.tools.report.charts import ForestRow, breach_share

WRONG_ANSWER = "no speed-up: wrong answer"
WRONG_BASELINE = "no speed-up: the baseline's answer is wrong"
NUM_COLOURS = 8
TONES = {
    "faster": "good", "ok": "good", "pass": "good", "passed": "good", "healthy": "good", "complete": "good",
    "equal": "muted", "same": "muted", "inconclusive": "warn", "warn": "warn", "warning": "warn", "warnings": "warn",
    "interrupted": "warn", "running": "warn", "slower": "bad", "fail": "bad", "failed": "bad", "gate failed": "bad",
    "regression": "bad", "error": "bad", "unusable": "bad", "keeps up": "good", "bottleneck": "warn",
    "tuned": "good", "nothing found": "bad", "nothing faster": "warn", "nothing right": "bad", "arm failed": "bad",
     "verified": "good", "mismatch": "bad", "exported": "good", "form failed": "warn",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SpeedRow:
    """One line of the speed-up table, in words."""

    arm: str
    role: str
    css: str
    time: str
    time_interval: str = ""
    rate: str = UNKNOWN
    speedup: str = UNKNOWN
    speedup_interval: str = ""
    more: list[str] = field(default_factory=list)
    """The same comparison by the other clocks."""
    verdict: str = ""
    tone: str = "muted"
    reason: str = ""
    error: str = UNKNOWN
    allowed: str = ""
    error_tone: str = "muted"
    memory: str = UNKNOWN
    memory_kind: str = ""
    first_step: str = UNKNOWN
    energy: str = UNKNOWN


def tone_of(outcome: str) -> str:
    """good, bad, warn or muted, for a word of a verdict."""
    return TONES.get(outcome.strip().lower().replace("_", " ").replace("-", " "), "muted")


def colours(record: RunRecord) -> dict[str, str]:
    """A CSS class for each arm: the baseline is grey, the others take the palette in their order."""
    names, following = {}, 0
    for arm in record.arms:
        if arm.role == "baseline":
            names[arm.name] = "a0"
        else:
            names[arm.name] = f"a{1 + following % NUM_COLOURS}"
            following += 1
    return names


def gate_is_red(record: RunRecord, arm: str) -> bool:
    return any(gate.arm == arm and not gate.passed for gate in record.gates)


def withheld(record: RunRecord, arm: str, baseline: str) -> str:
    """Why no speed-up of ``arm`` over ``baseline`` may be shown; '' when it may."""
    if gate_is_red(record, arm):
        return WRONG_ANSWER
    return WRONG_BASELINE if gate_is_red(record, baseline) else ""


def comparison_of(record: RunRecord, arm: str, quantity: str) -> Comparison | None:
    return next((c for c in record.comparisons if c.arm == arm and c.quantity == quantity), None)


def headline_comparisons(record: RunRecord) -> list[Comparison]:
    """The comparisons by wall time, or by the one quantity a record has when it has no wall time."""
    wall = [c for c in record.comparisons if c.quantity == "wall"]
    if wall or not record.comparisons:
        return wall
    return [c for c in record.comparisons if c.quantity == record.comparisons[0].quantity]


def worst_check(gates: list[Gate], arm: str) -> GateCheck | None:
    """The check nearest to its limit, or furthest beyond it."""
    checks = [check for gate in gates if gate.arm == arm for check in gate.checks]
    return max(checks, key=lambda c: (not c.passed, breach_share(c.error, c.allowed)), default=None)


def peak_memory(memory: Memory | None) -> tuple[str, str]:
    """The widest measure of memory there is, and its name."""
    if memory is None:
        return UNKNOWN, ""
    measures = ((memory.device_used_bytes, "device"), (memory.reserved_bytes, "reserved"),
                (memory.allocated_bytes, "allocated"), (memory.host_rss_bytes, "host"))  # fmt: skip
    for size, name in measures:
        if size is not None:
            return format_bytes(size), name
    return UNKNOWN, ""


def _apart(words: str) -> tuple[str, str]:
    """``2.31x [2.25, 2.38]`` as its number and its interval."""
    number, bracket, rest = words.partition(" [")
    return number, f"[{rest}" if bracket else ""


def speed_rows(record: RunRecord) -> list[SpeedRow]:
    """Baseline first, then the arms in their order; a record of comparisons alone gets a row for each of them."""
    css = colours(record)
    arms = sorted(record.arms, key=lambda arm: arm.role != "baseline")
    rows = [_arm_row(record, arm, css[arm.name]) for arm in arms]
    known = {arm.name for arm in record.arms}
    for place, comparison in enumerate(c for c in headline_comparisons(record) if c.arm not in known):
        row = SpeedRow(
            arm=comparison.arm, role=f"against {comparison.baseline}", css=f"a{1 + place % NUM_COLOURS}", time=UNKNOWN
        )
        rows.append(_with_speed(record, row, comparison))
    return rows


def _time_so_far(record: RunRecord, arm: Arm) -> tuple[str, str]:
    """The middle of the processes' medians, for a run that ended before it had summed up."""
    medians = [statistics.median(values) for values in record.samples(arm.name, "wall") if values]
    return (format_ms(statistics.median(medians)), "so far, no interval") if medians else (UNKNOWN, "")


def _arm_row(record: RunRecord, arm: Arm, css: str) -> SpeedRow:
    summary = arm.summary("wall") or next((s for s in arm.summaries if s.unit == "ms"), None)
    worst = worst_check(record.gates, arm.name)
    time, interval = (
        _apart(format_ms_interval(summary.median, summary.low, summary.high)) if summary else _time_so_far(record, arm)
    )
    memory, memory_kind = peak_memory(arm.memory)
    row = SpeedRow(
        arm=arm.name,
        role=arm.role if arm.role != "arm" else "",
        css=css,
        time=time,
        time_interval=interval,
        rate=format_number(arm.samples_per_s),
        error=format_error(worst.error) if worst else "not checked",
        allowed=f"of {format_error(worst.allowed)}" if worst else "",
        error_tone="muted" if worst is None else "good" if worst.passed else "bad",
        memory=memory,
        memory_kind=memory_kind,
        first_step=format_s(arm.first_step_s),
        energy=f"{format_number(arm.energy_j_per_sample)} J" if arm.energy_j_per_sample is not None else UNKNOWN,
        reason="; ".join(arm.notes),
    )
    if arm.error:
        return replace(row, verdict="failed", tone="bad", reason=arm.error, speedup=UNKNOWN)
    comparison = comparison_of(record, arm.name, "wall")
    if comparison is not None:
        return _with_speed(record, row, comparison)
    if gate_is_red(record, arm.name):
        return replace(
            row, speedup=WRONG_ANSWER if arm.role != "baseline" else UNKNOWN, verdict="wrong answer", tone="bad"
        )
    if arm.role == "baseline":
        return replace(row, speedup="1x", verdict="baseline")
    return replace(row, verdict="context" if arm.role == "context" else "not compared")


def _with_speed(record: RunRecord, row: SpeedRow, comparison: Comparison) -> SpeedRow:
    why_not = withheld(record, comparison.arm, comparison.baseline)
    if why_not:
        wrong = why_not == WRONG_ANSWER
        return replace(row, speedup=why_not, verdict="wrong answer" if wrong else "no verdict", tone="bad")
    others = [c for c in record.comparisons if c.arm == comparison.arm and c is not comparison]
    others = [c for c in others if not gate_is_red(record, c.baseline)]
    speedup, interval = _apart(format_ratio(comparison.ratio, comparison.low, comparison.high))
    return replace(
        row,
        speedup=speedup,
        speedup_interval=interval,
        more=[_other_words(c, comparison) for c in others],
        verdict=comparison.verdict,
        tone=tone_of(comparison.verdict),
        reason="; ".join(part for part in (comparison.reason, row.reason) if part),
    )


def _other_words(other: Comparison, first: Comparison) -> str:
    """The same arm by another clock, or against another baseline."""
    clocks = {"wall": "", "device": "device only ", "transfer": "with copies "}
    clock = "" if other.quantity == first.quantity else clocks.get(other.quantity, f"{other.quantity} ")
    against = f" against {other.baseline}" if other.baseline != first.baseline else ""
    return f"{clock}{format_ratio(other.ratio)}{against}"


def forest_rows(record: RunRecord) -> list[ForestRow]:
    """A mark for each comparison that may be shown, the reason for each that may not."""
    rows = []
    several = len({c.baseline for c in headline_comparisons(record)}) > 1
    for c in headline_comparisons(record):
        label = f"{c.arm} / {c.baseline}" if several else c.arm
        why_not = withheld(record, c.arm, c.baseline)
        if why_not:
            rows.append(ForestRow(label=label, note=why_not, tone="bad"))
        elif not math.isfinite(c.ratio):
            rows.append(ForestRow(label=label, note=c.reason or "no ratio"))
        else:
            rows.append(ForestRow(label=label, ratio=c.ratio, low=c.low, high=c.high, tone=tone_of(c.verdict)))
    return rows
