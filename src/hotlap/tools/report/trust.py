"""Whether a verdict can be trusted: the few facts that decide it, each with a tone."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass
from typing import Any

from hotlap.base.format import format_count, format_list, format_number, format_percent
from hotlap.records.run import RunRecord
from hotlap.tools.report.speed import gate_is_red, headline_comparisons

FEW_PROCESSES = 5
"""Below it a difference between processes cannot be told from a difference between arms."""

BUSY = 1.25
"""Load, as a multiple of the host's CPUs, from which others must have waited for the same ones: it lags by a minute."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One reason for or against trust."""

    label: str
    text: str
    tone: str = "muted"


def trust_facts(record: RunRecord) -> list[Fact]:
    """Gate, replication, throttling, tenants, load, smallest visible effect, self-test; each where the record knows."""
    if record.kind in ("doctor", "loader", "profile", "train", "tune", "verify"):
        return []
    facts = [
        _gate(record),
        _replication(record),
        _throttling(record),
        _tenants(record),
        _load(record),
        _visible(record),
    ]
    return [fact for fact in [*facts, _self_test(record.extra.get("self_test"))] if fact is not None]


def _gate(record: RunRecord) -> Fact | None:
    if not record.gates:
        if not record.arms:
            return None
        return Fact(label="Right answer", text="Not checked: no numeric gate ran.", tone="warn")
    red = sorted({gate.arm for gate in record.gates if not gate.passed})
    if red:
        return Fact(label="Right answer", text=f"No: {format_list(red)} left the reference.", tone="bad")
    checks = sum(len(gate.checks) for gate in record.gates)
    checked = {gate.arm for gate in record.gates}
    missing = [arm.name for arm in record.arms if arm.name not in checked and not arm.error]
    if missing:
        return Fact(label="Right answer", text=f"In part: {format_list(missing)} not checked.", tone="warn")
    return Fact(
        label="Right answer",
        text=f"Yes: {format_count(checks, 'check')} passed in {format_count(len(checked), 'arm')}.",
        tone="good",
    )


def replication(record: RunRecord) -> tuple[int, int]:
    """Processes of the wall clock, and the fewest timed iterations in one of them; context arms do not count."""
    context = {arm.name for arm in record.arms if arm.role == "context"}
    found = [m for m in record.measurements if m.arm not in context and m.values]
    walls = [m for m in found if m.quantity == "wall"]
    if walls:
        single = [m for m in found if m.quantity == "interval"]  # a block of iterations is one value of the wall clock
        return len({m.process for m in walls}), min(len(m.values) for m in single or walls)
    counted = [s for arm in record.arms if arm.name not in context for s in arm.summaries]
    kept = [s for s in counted if s.quantity == "interval"] or [s for s in counted if s.quantity == "wall"]
    if not kept:
        return 0, 0
    fewest = min(kept, key=lambda s: s.num_processes)
    return fewest.num_processes, fewest.num_samples // max(fewest.num_processes, 1)


def _replication(record: RunRecord) -> Fact | None:
    processes, iterations = replication(record)
    if not processes:
        return Fact(label="Replication", text="No timed samples.", tone="bad") if record.arms else None
    text = f"{format_count(processes, 'fresh process', 'fresh processes')} × {format_count(iterations, 'iteration')}"
    if processes < FEW_PROCESSES:
        return Fact(label="Replication", text=f"{text}: few; repeat before relying on it.", tone="warn")
    return Fact(label="Replication", text=f"{text} for each arm.", tone="good")


def _throttling(record: RunRecord) -> Fact | None:
    flagged = [m for m in record.measurements if "throttled" in m.flags]
    blocks = [t for t in record.telemetry if t.throttle]
    if not blocks and not flagged:
        if not record.telemetry:
            return Fact(label="Throttling", text="Not watched.", tone="warn") if record.measurements else None
        return Fact(label="Throttling", text=f"None in {format_count(len(record.telemetry), 'block')}.", tone="good")
    if not blocks:
        return Fact(label="Throttling", text=f"{format_count(len(flagged), 'series', 'series')} flagged.", tone="warn")
    reasons = [name for name, _ in Counter(reason for t in blocks for reason in t.throttle).most_common()]
    text = f"{len(blocks)} of {format_count(len(record.telemetry), 'block')}: {format_list(reasons)}."
    return Fact(label="Throttling", text=text, tone="warn")


def _tenants(record: RunRecord) -> Fact | None:
    if not record.telemetry or not any(t.sm_clock_mhz is not None for t in record.telemetry):
        return None
    others = sorted({pid for t in record.telemetry for pid in t.other_processes})
    if not others:
        return Fact(label="Other tenants", text="None: the device was ours alone.", tone="good")
    shown = format_list([str(pid) for pid in others[:4]])
    return Fact(
        label="Other tenants", text=f"{format_count(len(others), 'process', 'processes')} seen ({shown}).", tone="warn"
    )


def _load(record: RunRecord) -> Fact | None:
    """Other programs on the host, where there were surely some: an arm alone cannot bring more load than it has CPUs.

    In a container the load is the whole host's, and so is the number of CPUs that it is set beside.
    """
    loads = [t.load_average for t in record.telemetry if t.load_average is not None and t.arm.startswith("cpu")]
    cpus = record.environment.logical_cpus
    if not loads or statistics.median(loads) <= BUSY * cpus:
        return None
    shown = f"{format_number(statistics.median(loads))} on {format_count(cpus, 'CPU')}"
    return Fact(label="Load", text=f"{shown}: other programs took turns with this one; repeat when quiet.", tone="warn")


def _visible(record: RunRecord) -> Fact | None:
    allowed = [c for c in headline_comparisons(record) if not gate_is_red(record, c.arm)]
    known = [c.min_detectable for c in allowed if math.isfinite(c.min_detectable)]
    if not known:
        return None
    widest = max(known)
    return Fact(
        label="Smallest visible effect",
        text=f"A change of {format_percent(widest)} would have shown four times in five.",
        tone="good" if widest <= 0.05 else "warn",
    )


def _self_test(found: Any) -> Fact | None:
    """What comparing an arm with itself gave: how often this machine cries wolf."""
    if not isinstance(found, dict) or not found.get("comparisons"):
        return None
    total, wrong = int(found["comparisons"]), int(found.get("false_positives", 0))
    rate = wrong / total
    return Fact(
        label="A/A self-test",
        text=f"{wrong} of {total} comparisons of an arm with itself gave a verdict ({format_percent(rate)}).",
        tone="good" if rate <= 0.075 else "warn",
    )
