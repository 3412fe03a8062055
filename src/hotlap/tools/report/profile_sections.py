"""The sections that only a profile has."""

from __future__ import annotations

from collections.abc import Sequence

from hotlap.records.run import RunRecord
from hotlap.tools.report.document import (
    Block,
    Cell,
    Column,
    Drawing,
    Finding,
    Heading,
    Items,
    Pair,
    Pairs,
    Section,
    Table,
    Words,
)
from hotlap.tools.report.figures import Figure
from hotlap.tools.report.profile import AdviceRow, ProfileView, TableRow, profile_view

LONGEST_NAME = 110


def profile_sections(record: RunRecord) -> list[Section]:
    """What the step is made of, what to try, what waits, operations, modules, memory, ceilings, ranks."""
    view = profile_view(record)
    if view is None:
        return []
    named: list[tuple[str, Sequence[Block]]] = [
        ("What changed", _drawings(view.changes)),
        ("Where the time goes", _drawings(view.figures)),
        ("What to try", _advice(view.advice)),
        ("Waiting", _waiting(view)),
        *((title, [_operations(rows)]) for title, rows in view.tables),
        ("Modules", _drawings([view.modules])),
        ("Memory", _memory(view)),
        ("Against the ceilings", _ceilings(view)),
        ("Ranks", _ranks(view.ranks)),
    ]
    return [Section(title=title, blocks=tuple(blocks)) for title, blocks in named if blocks]


def _drawings(figures: Sequence[Figure | None]) -> list[Block]:
    return [Drawing(figure=figure) for figure in figures if figure is not None]


def _advice(rows: Sequence[AdviceRow]) -> list[Block]:
    if not rows:
        return []
    lead = "Largest estimated gain first. An estimate is arithmetic on this trace; the command beneath it measures."
    found = [
        Finding(
            name=row.name, tone=row.tone, gain=f"{row.gain} of this step", measured=row.measured, text=row.why,
            quiet=row.basis, action="Check" if row.command else "", command=row.command,
        )
        for row in rows
    ]  # fmt: skip
    return [Words(text=lead, style="lead"), *found]


def _waiting(view: ProfileView) -> list[Block]:
    found = _drawings([view.idle])
    if view.waits:
        found += [Heading(text="Lines that make the host wait for the device"), Items(texts=tuple(view.waits))]
    return found


def _operations(rows: Sequence[TableRow]) -> Table:
    titles = ("Name", "Category", "Calls", "Time", "Share")
    return Table(
        columns=(*(Column(title=title) for title in titles), Column(title="", label="Also")),
        rows=tuple(
            (
                Cell(text=_cut(row.name), mono=True),
                Cell(text=row.category, swatch=row.css),
                *(Cell(text=text, number=True) for text in (row.calls, row.time, row.share)),
                Cell(text=row.more),
            )
            for row in rows
        ),
    )


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def _memory(view: ProfileView) -> list[Block]:
    found = _drawings(view.memory)
    if found and view.owners:
        pairs = tuple(Pair(name=what, value=size) for what, size in view.owners)
        found += [Heading(text="Who held it at the peak"), Pairs(pairs=pairs)]
    return found


def _ceilings(view: ProfileView) -> list[Block]:
    found = _drawings([view.roofline])
    if found and view.farthest:
        titles = ("Operator", "Precision", "Time", "Arithmetic", "Memory", "Times the\nceiling's")
        rows = tuple(
            (Cell(text=first, mono=True), Cell(text=precision), *(Cell(text=text, number=True) for text in rest))
            for first, precision, *rest in view.farthest
        )
        found.append(Table(columns=tuple(Column(title=title) for title in titles), rows=rows))
    return found


def _ranks(ranks: Sequence[Sequence[str]]) -> list[Block]:
    if not ranks:
        return []
    titles = ("Rank", "Step", "Busy", "Idle", "Exchanges", "Before the slowest")
    rows = tuple(tuple(Cell(text=text, number=True) for text in cells) for cells in ranks)
    return [Table(columns=tuple(Column(title=title) for title in titles), rows=rows)]
