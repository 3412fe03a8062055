"""The speed-up table as blocks: of one record with every column, or of all records with the few they share."""

from __future__ import annotations

from collections.abc import Sequence

from hotlap.tools.report.document import Cell, Column, Table
from hotlap.tools.report.speed import SpeedRow

SHORT_WORDS = 4
"""A speed-up without an interval and longer than this is the reason why there is none."""


def speed_table(rows: Sequence[SpeedRow], *, energy: bool = False) -> Table:
    """Every arm of one record: time, rate, speed-up with its interval, verdict, error, memory, first step."""
    columns = [*_columns(), Column(title="First\nstep")]
    columns += [Column(title="Energy/\nsample")] if energy else []
    found = []
    for row in rows:
        cells = [*_cells(row, whole=True), Cell(text=row.first_step, number=True)]
        found.append((*cells, *((Cell(text=row.energy, number=True),) if energy else ())))
    return Table(columns=tuple(columns), rows=tuple(found), style="speed")


def shared_table(runs: Sequence[tuple[str, str, Sequence[SpeedRow]]]) -> Table:
    """Every arm of every record, under the record's name and anchor."""
    rows = []
    for name, anchor, arms in runs:
        for place, row in enumerate(arms):
            first = Cell(text=name, link=anchor) if place == 0 else Cell(text="")
            rows.append((first, *_cells(row, whole=False)))
    return Table(columns=(Column(title="Run"), *_columns()), rows=tuple(rows), style="speed")


def _columns() -> list[Column]:
    return [
        Column(title="Arm"),
        Column(title="Median\n[95% interval]", label="Median [95%]"),
        Column(title="Samples/s"),
        Column(title="Speed-up\n[95% interval]", label="Speed-up"),
        Column(title="Verdict"),
        Column(title="Error\nof allowed", label="Worst error"),
        Column(title="Peak\nmemory"),
    ]


def _cells(row: SpeedRow, *, whole: bool) -> list[Cell]:
    words = not row.speedup_interval and len(row.speedup) >= SHORT_WORDS
    beside = [row.speedup_interval, *(row.more if whole else [])]
    return [
        Cell(text=row.arm, mono=True, swatch=row.css, more=_some(row.role)),
        Cell(text=row.time, number=True, more=_some(row.time_interval)),
        Cell(text=row.rate, number=True),
        Cell(text=row.speedup, strong=True, number=not words, tone="bad" if words else "", more=_some(*beside)),
        Cell(text=row.verdict, tone=row.tone, more=_some(row.reason) if whole else ()),
        Cell(text=row.error, number=True, tone="bad" if row.error_tone == "bad" else "", more=_some(row.allowed)),
        Cell(text=row.memory, number=True, more=_some(row.memory_kind)),
    ]


def _some(*texts: str) -> tuple[str, ...]:
    return tuple(text for text in texts if text)
