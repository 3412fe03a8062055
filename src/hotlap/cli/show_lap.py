"""A lap on the terminal: before and after, what the advice was worth, the stages, and what to paste."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hotlap.base.format import (
    UNKNOWN,
    format_bytes,
    format_gain,
    format_ms,
    format_ms_interval,
    format_number,
    format_percent,
    format_ratio,
    format_s,
)
from hotlap.cli.columns import Cell, fitted
from hotlap.records.lap import Lap, LapRow, lap_of
from hotlap.records.run import RunRecord

STYLES = {
    "faster": "green", "slower": "red", "inconclusive": "yellow", "wrong answer": "red", "failed": "red",
    "done": "green", "running": "cyan", "skipped": "dim", "interrupted": "yellow", "pending": "dim",
}  # fmt: skip


def show_lap(record: RunRecord, console: Console) -> None:
    """Everything a lap found, the numbers first, the code last but for where things lie."""
    found = lap_of(record)
    if found.table:
        console.print(_speed_table(found.table, console.width))
        console.print(_cost_table(found.table, console.width))
        if any(row.peak_from == "search" for row in found.table):
            console.print(Text("  peak memory is that of the search's trials; the bench did not look", style="dim"))
    if found.advice:
        console.print(_advice_table(found, console.width))
    console.print(_stage_table(found))
    if found.paste:
        console.print(Text("to paste into your own script", style="bold"))
        console.print(Text(found.paste.rstrip("\n")), soft_wrap=True)
    for command in found.commands:
        console.print(Text(f"or      {command}", style="bold"), soft_wrap=True)
    for word, path in (("profile", found.profile), ("report", _report_path(record, found))):
        if path:
            console.print(Text(f"{word:<7} {path}", style="dim"), soft_wrap=True)


def _report_path(record: RunRecord, found: Lap) -> str:
    from pathlib import Path

    return str(Path(record.path).parent / found.report) if found.report and record.path else found.report


WORDS = ("", "arm", "verdict", "advice")
ROLES = {"before": "before", "batch": "its batch", "after": "after", "advice": "advised"}


def _speed_table(rows: list[LapRow], width: int) -> Table:
    """Before and after: what most people came for."""
    cells: list[list[Cell]] = []
    for row in rows:
        interval = row.ms_low is not None and row.ms_high is not None
        cells.append(
            [
                ROLES.get(row.role, row.role),
                row.arm,
                str(row.batch),
                format_ms_interval(row.ms, row.ms_low, row.ms_high) if interval else format_ms(row.ms),
                format_ratio(row.ratio, row.low, row.high) if row.ratio is not None else UNKNOWN,
                Text(row.verdict, style=STYLES.get(row.verdict, "")),
            ]
        )
    names = ("", "arm", "batch", "a step", "speed-up", "verdict")
    return fitted(names, cells, width=width, words=WORDS, styles=_styles(rows))


def _cost_table(rows: list[LapRow], width: int) -> Table:
    """What the speed costs: memory, and the numeric error as a share of what is allowed."""
    cells: list[list[Cell]] = [
        [
            ROLES.get(row.role, row.role),
            row.arm,
            format_number(row.samples_per_s),
            format_bytes(row.peak_bytes),
            format_percent(row.error) if row.error is not None else UNKNOWN,
        ]
        for row in rows
    ]
    names = ("", "arm", "samples/s", "peak", "error of allowed")
    return fitted(names, cells, width=width, words=WORDS, styles=_styles(rows))


def _styles(rows: list[LapRow]) -> list[str]:
    return ["bold" if row.role == "after" else "" for row in rows]


def _advice_table(found: Lap, width: int) -> Table:
    rows: list[list[Cell]] = []
    for piece in found.advice:
        measured = format_ratio(piece.measured, piece.low, piece.high) if piece.measured is not None else UNKNOWN
        style = STYLES.get(piece.verdict, "")
        kept = format_percent(piece.score) if piece.score is not None else UNKNOWN
        about = format_gain(piece.predicted, piece.at_most)
        rows.append([piece.name, piece.arm, about, measured, kept, Text(piece.verdict, style=style)])
    names = ("advice", "arm", "predicted", "measured", "of it", "verdict")
    return fitted(names, rows, width=width, words=WORDS)


def _stage_table(found: Lap) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("stage", "", "took", "what came out"):
        table.add_column(name, justify="right" if name == "took" else "left", overflow="fold")
    for stage in found.stages:
        took = format_s(stage.seconds) if stage.seconds else UNKNOWN
        table.add_row(stage.name, Text(stage.status, style=STYLES.get(stage.status, "")), took,
                      Text(stage.headline or stage.why))  # fmt: skip
    return table
