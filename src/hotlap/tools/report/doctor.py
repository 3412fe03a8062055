"""A doctor's record: findings with their fixes, failing first, and the machine's measured ceilings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hotlap.base.format import format_count
from hotlap.records.measurement import Check
from hotlap.records.run import RunRecord
from hotlap.tools.report.charts import BarRow

ORDER = {"FAIL": 0, "WARN": 1, "PASS": 2, "SKIP": 3}
STATUS_TONES = {"FAIL": "bad", "WARN": "warn", "PASS": "good", "SKIP": "muted"}
UNITS = {"tflops": "TFLOP/s", "gflops": "GFLOP/s", "gbps": "GB/s", "gb_s": "GB/s", "gb_per_s": "GB/s", "gib_s": "GiB/s",
         "us": "µs", "ms": "ms"}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One check, ready to print."""

    name: str
    status: str
    tone: str
    observed: str
    why: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class FindingGroup:
    """The findings of one theme; a theme without trouble starts folded."""

    name: str
    findings: list[Finding]
    counts: str
    tone: str
    open: bool


def finding_groups(checks: list[Check]) -> list[FindingGroup]:
    """Themes with a failure first, then warnings; within a theme likewise."""
    themes: dict[str, list[Check]] = {}
    for check in checks:
        themes.setdefault(check.group, []).append(check)
    ranked = sorted(themes.items(), key=lambda item: min(ORDER.get(c.status, 4) for c in item[1]))
    return [_group(name, sorted(found, key=lambda c: ORDER.get(c.status, 4))) for name, found in ranked]


def _group(name: str, checks: list[Check]) -> FindingGroup:
    words = {"FAIL": "failed", "WARN": "warned", "PASS": "passed", "SKIP": "skipped"}
    counted = [(status, sum(c.status == status for c in checks)) for status in ORDER]
    return FindingGroup(
        name=name,
        findings=[
            Finding(
                name=c.name,
                status=c.status,
                tone=STATUS_TONES.get(c.status, "muted"),
                observed=c.observed,
                why=c.why,
                fix=c.fix,
            )
            for c in checks
        ],
        counts=", ".join(f"{number} {words[status]}" for status, number in counted if number),
        tone=STATUS_TONES.get(checks[0].status, "muted"),
        open=checks[0].status in ("FAIL", "WARN"),
    )


def doctor_headline(record: RunRecord) -> str:
    """The findings in one sentence, for a record that has no verdict yet."""
    failed = sum(c.status == "FAIL" for c in record.checks)
    warned = sum(c.status == "WARN" for c in record.checks)
    if failed:
        return f"{format_count(failed, 'check')} failed and {format_count(warned, 'check')} warned."
    if warned:
        return f"Nothing failed; {format_count(warned, 'check')} warned."
    return f"All {format_count(len(record.checks), 'check')} passed or did not apply."


def ceiling_groups(ceilings: Any) -> list[tuple[str, list[BarRow]]]:
    """Measured ceilings as bars, one chart for each unit, because different units share no scale."""
    groups: dict[str, list[BarRow]] = {}
    for path, value, unit in _leaves(ceilings, ()):
        name, found = _split_unit(path[-1]) if path else ("", "")
        label = " ".join([*path[:-1], name]).replace("_", " ").strip() or "value"
        groups.setdefault(unit or found, []).append(BarRow(label=label, bars=[("", value, "a1 solid")]))
    return list(groups.items())


def _leaves(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], float, str]]:
    """Every number of a nest of mappings and lists; ``{"value": .., "unit": ..}`` is one number with its unit."""
    if isinstance(node, bool) or node is None:
        return
    if isinstance(node, (int, float)):
        yield path, float(node), ""
    elif isinstance(node, dict):
        if isinstance(node.get("value"), (int, float)):
            name = str(node.get("name", "")) or (path[-1] if path else "")
            yield (*path[:-1], name), float(node["value"]), str(node.get("unit", ""))
            return
        for key, item in node.items():
            yield from _leaves(item, (*path, str(key)))
    elif isinstance(node, list):
        for item in node:
            yield from _leaves(item, (*path, ""))


def _split_unit(name: str) -> tuple[str, str]:
    """``bf16_tflops`` -> ``bf16``, ``TFLOP/s``; a name without a known unit stays whole."""
    for suffix, unit in UNITS.items():
        match = re.fullmatch(rf"(.*?)_?{suffix}", name, re.IGNORECASE)
        if match:
            return match.group(1), unit
    return name, ""
