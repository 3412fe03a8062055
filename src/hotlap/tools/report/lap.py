"""A lap's record: before and after, what the advice was worth, what to paste, and how each stage ended."""

from __future__ import annotations

from collections.abc import Sequence

from hotlap.base.format import (
    UNKNOWN,
    format_bytes,
    format_ms,
    format_ms_interval,
    format_number,
    format_percent,
    format_ratio,
    format_s,
)
from hotlap.records.lap import Lap, LapAdvice, LapRow, LapStage, lap_of, stage_records
from hotlap.records.run import RunRecord
from hotlap.tools.report.document import Block, Cell, Column, Command, Section, Table, Words

ROLES = {"before": "before", "batch": "before, at that batch", "after": "after", "advice": "advised"}
TONES = {
    "faster": "good", "slower": "bad", "inconclusive": "warn", "wrong answer": "bad", "failed": "bad", "done": "good",
    "skipped": "muted", "interrupted": "warn", "running": "warn", "pending": "muted", "baseline": "muted",
}  # fmt: skip
IN_THE_BENCH = "baseline"
"""The stage whose arm the bench times again, and better."""


def with_stages(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The records, each lap followed by those of its stages; the baseline's alone only where no bench came after."""
    found: list[RunRecord] = []
    for record in records:
        found.append(record)
        if record.kind == "lap":
            stages = stage_records(record)
            found += [made for name, made in stages.items() if name != IN_THE_BENCH or "bench" not in stages]
    return found


def lap_sections(record: RunRecord) -> list[Section]:
    """The sections of a lap; none for any other record."""
    if record.kind != "lap":
        return []
    lap = lap_of(record)
    sections = [Section(title="Before and after", blocks=(_table(lap.table), *_remarks(lap)))] if lap.table else []
    if lap.advice:
        lead = "What the first profile promised, by arithmetic on its trace, beside what the bench measured."
        blocks = (Words(text=lead, style="lead"), _advice_table(lap.advice))
        sections.append(Section(title="Advice, put to the test", blocks=blocks))
    if lap.paste:
        sections.append(Section(title="To paste into your own script", blocks=tuple(_paste(lap))))
    return [*sections, Section(title="Stages", blocks=(_stage_table(lap.stages),))]


def _remarks(lap: Lap) -> list[Block]:
    found = ["All rows are of one interleaved run: the arms took turns in every process. Speed-ups are of samples a "
             "second."]  # fmt: skip
    if any(row.peak_from == "search" for row in lap.table):
        found.append("Peak memory is that of the search's trials.")
    return [Words(text=" ".join(found), style="quiet")]


def _table(rows: Sequence[LapRow]) -> Table:
    titles = ("Arm", "A step", "Samples/s", "Peak\nmemory", "Error\nof allowed", "Speed-up")
    columns = (Column(title="", label="When"), *(Column(title=t) for t in titles), Column(title="", label="Verdict"))
    return Table(columns=columns, rows=tuple(_row(row) for row in rows), style="speed")


def _row(row: LapRow) -> tuple[Cell, ...]:
    numbers = (
        format_number(row.samples_per_s),
        format_bytes(row.peak_bytes),
        format_percent(row.error) if row.error is not None else UNKNOWN,
    )
    return (
        Cell(text=ROLES.get(row.role, row.role), strong=row.role in ("before", "after")),
        Cell(text=row.arm, mono=True, more=(f"batch {row.batch}",)),
        _number(_step(row)),
        *(Cell(text=text, number=True) for text in numbers),
        _number(_ratio(row), strong=row.role == "after"),
        Cell(text=row.verdict, tone=TONES.get(row.verdict, "")),
    )


def _number(text: str, *, strong: bool = False) -> Cell:
    """A number with its interval, where it has one, beneath it."""
    value, bracket, interval = text.partition(" [")
    return Cell(text=value, number=True, strong=strong, more=(f"[{interval}",) if bracket else ())


def _step(row: LapRow) -> str:
    known = row.ms_low is not None and row.ms_high is not None
    return format_ms_interval(row.ms, row.ms_low, row.ms_high) if known else format_ms(row.ms)


def _ratio(row: LapRow | LapAdvice) -> str:
    ratio = row.ratio if isinstance(row, LapRow) else row.measured
    return format_ratio(ratio, row.low, row.high) if ratio is not None else UNKNOWN


def _advice_table(rows: Sequence[LapAdvice]) -> Table:
    titles = ("Advice", "Arm", "Predicted", "Measured")
    return Table(
        columns=(*(Column(title=title) for title in titles), Column(title="", label="Verdict")),
        rows=tuple(
            (
                Cell(text=row.name, more=(row.basis,) if row.basis else ()),
                Cell(text=row.arm, mono=True),
                Cell(text=f"about {format_number(row.predicted)}x", number=True),
                Cell(text=_ratio(row), number=True, strong=True),
                Cell(text=row.verdict, tone=TONES.get(row.verdict, ""), badge=bool(row.verdict)),
            )
            for row in rows
        ),
    )


def _paste(lap: Lap) -> list[Block]:
    found: list[Block] = [Command(text=lap.paste.rstrip("\n"), language="python")]
    if lap.commands:
        found.append(Words(text="Or let hotlap do it: this takes the tuned profile by itself.", style="quiet"))
        found += [Command(text=text) for text in lap.commands]
    return [*found, Words(text=f"The profile lies in {lap.profile}.", style="quiet")] if lap.profile else found


def _stage_table(stages: Sequence[LapStage]) -> Table:
    return Table(
        columns=(Column(title="Stage"), Column(title="", label="Status"), Column(title="Took"), Column(title="Found")),
        rows=tuple(
            (
                Cell(text=stage.name, more=(stage.what,)),
                Cell(text=stage.status, tone=TONES.get(stage.status, ""), badge=True),
                Cell(text=format_s(stage.seconds) if stage.seconds else UNKNOWN, number=True),
                Cell(text=stage.headline or stage.why, more=(stage.record,) if stage.record else ()),
            )
            for stage in stages
        ),
    )
