"""Two profiles side by side: what got slower, what got faster, and by how much of the whole change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hotlap.base.format import format_ms
from hotlap.tools.profile.found import Analysis, ModuleRow, Part, Row

MAX_ROWS = 30


@dataclass(frozen=True, kw_only=True)
class Change:
    """One part of the step, before and after, in ms; a part that one side lacks took it no time."""

    name: str
    before_ms: float
    after_ms: float
    calls_before: float = 0.0
    calls_after: float = 0.0

    @property
    def change_ms(self) -> float:
        return self.after_ms - self.before_ms


@dataclass(frozen=True, kw_only=True)
class Diff:
    """What changed between two profiles, the largest changes first."""

    before: str
    after: str
    before_ms: float
    """Wall time of a step; without the profiler where both profiles know it."""
    after_ms: float
    traced: bool
    """Whether those times were taken under the profiler."""
    categories: list[Change]
    phases: list[Change]
    ops: list[Change]
    kernels: list[Change]
    modules: list[Change]
    warnings: list[str]

    @property
    def ratio(self) -> float:
        return self.before_ms / self.after_ms if self.after_ms else 0.0


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two."""

    label: str
    analysis: Analysis
    step_ms: float | None
    """Without the profiler; None where only a trace is there."""


def compare(before: Side, after: Side) -> Diff:
    """The changes from one profile to the other."""
    known = before.step_ms is not None and after.step_ms is not None
    first, second = before.analysis, after.analysis
    warnings = [f"{side.label}: {text}" for side in (before, after) for text in side.analysis.warnings]
    if first.on_device != second.on_device:
        warnings.append("One step ran on a card and the other on the host; categories compare, operators hardly do.")
    if known:
        warnings.append(
            f"Parts are of the traced steps, {format_ms(first.step_ms)} before and {format_ms(second.step_ms)} after; "
            "the headline's times are of steps without the profiler."
        )
    return Diff(
        before=before.label,
        after=after.label,
        before_ms=(before.step_ms or 0.0) if known else first.step_ms,
        after_ms=(after.step_ms or 0.0) if known else second.step_ms,
        traced=not known,
        categories=_changes(first.categories, second.categories),
        phases=_changes(first.phases, second.phases),
        ops=_changes(first.ops, second.ops),
        kernels=_changes(first.kernels, second.kernels),
        modules=_changes(first.modules, second.modules),
        warnings=warnings,
    )


Timed = Part | Row | ModuleRow


def _changes(before: Sequence[Timed], after: Sequence[Timed]) -> list[Change]:
    old, new = _summed(before), _summed(after)
    found = [
        Change(
            name=name,
            before_ms=old.get(name, (0.0, 0.0))[0],
            after_ms=new.get(name, (0.0, 0.0))[0],
            calls_before=old.get(name, (0.0, 0.0))[1],
            calls_after=new.get(name, (0.0, 0.0))[1],
        )
        for name in [*old, *(name for name in new if name not in old)]
    ]
    return sorted(found, key=lambda change: -abs(change.change_ms))[:MAX_ROWS]


def _summed(rows: Sequence[Timed]) -> dict[str, tuple[float, float]]:
    """Time and calls by name; of a module its own time, so that one change shows once."""
    found: dict[str, tuple[float, float]] = {}
    for row in rows:
        ms = row.own_ms if isinstance(row, ModuleRow) else row.ms
        calls = row.calls if isinstance(row, Row) else 0.0
        before = found.get(row.name, (0.0, 0.0))
        found[row.name] = (before[0] + ms, before[1] + calls)
    return found
