"""A profile on the terminal: what the step is made of, its longest operators, and what to try."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hotlap.base.format import (
    UNKNOWN,
    format_gain,
    format_mean_count,
    format_ms,
    format_number,
    format_percent,
    format_ratio,
)
from hotlap.base.kernel_name import kernel_label
from hotlap.records.run import RunRecord

NUM_ROWS = 12


def show_profile(record: RunRecord, console: Console) -> None:
    """The tables of a profile's record, under its headline."""
    found: dict[str, Any] = record.extra.get("profile") or {}
    changes: dict[str, Any] = record.extra.get("diff") or {}
    analysis = found.get("analysis")
    if analysis:
        _show_parts(analysis, console)
        kernels = analysis["kernels"] or analysis["ops"]
        console.print(_rows_table("kernel" if analysis["kernels"] else "operator", kernels))
        _show_lists(found, console)
    if found.get("advice"):
        console.print(_advice_table(found["advice"]))
    for kind in ("categories", "kernels", "ops"):
        if changes.get(kind):
            console.print(_change_table(kind, changes[kind]))


def _table(title: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title=title or None, title_justify="left")
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number == 0 or name == "" else "right", overflow="fold")
    return table


def _show_parts(analysis: dict[str, Any], console: Console) -> None:
    table = _table("", "part of the step", "time", "share", "")
    for part in analysis["categories"]:
        bar = Text("█" * round(30 * part["share"]), style="yellow" if _is_waiting(part["name"]) else "cyan")
        table.add_row(part["name"], format_ms(part["ms"]), format_percent(part["share"]), bar)
    table.add_row("traced step", format_ms(analysis["step_ms"]), "100%", "", style="bold")
    console.print(table)


def _is_waiting(name: str) -> bool:
    return name.startswith(("idle", "host code", "waiting"))


def _rows_table(what: str, rows: list[dict[str, Any]]) -> Table:
    table = _table("", what, "category", "calls", "time", "share", "")
    for row in rows[:NUM_ROWS]:
        mark = (
            "tensor cores" if row.get("tensor_cores") else "no tensor cores" if row.get("tensor_cores") is False else ""
        )
        table.add_row(
            Text(kernel_label(row["name"])[:80]),
            row["category"],
            format_mean_count(row["calls"]),
            format_ms(row["ms"]),
            format_percent(row["share"]),
            mark,
        )
    return table


def _show_lists(found: dict[str, Any], console: Console) -> None:
    for sync in found["analysis"]["syncs"][:5]:
        place = sync["where"] or sync["op"] or "an unknown place"
        text = f"  {format_ms(sync['ms'])} a step in {format_number(sync['count'])} {sync['call']} at {place}"
        console.print(Text(text))
    waits = "the host waits where it" if found["analysis"]["on_device"] else "a card's host would wait where it"
    for wait in (found.get("measured") or {}).get("waits", [])[:5]:
        console.print(Text(f"  {waits} {wait['why']}: {wait['where']}, {wait['count']} times a step"))
    for rank in found.get("ranks") or []:
        console.print(
            Text(
                f"  rank {rank['rank']}: {format_ms(rank['step_ms'])} a step, {format_ms(rank['busy_ms'])} busy, "
                f"{format_ms(rank['communication_ms'])} of it exchanges; done {format_ms(rank['waits_ms'])} before the "
                "slowest"
            )
        )


def _advice_table(rows: list[dict[str, Any]]) -> Table:
    checked = any(row.get("measured") for row in rows)
    table = _table("what to try", "advice", "estimate", *(["measured"] if checked else []), "")
    for row in rows:
        estimate = format_gain(row["gain"], bool(row.get("at_most")))
        measured = format_ratio(row.get("measured")) if row.get("measured") else UNKNOWN
        if row.get("right") is False:
            measured = "wrong answer"
        table.add_row(row["name"], estimate, *([measured] if checked else []), Text(row["command"] or row["basis"]))
    return table


def _change_table(kind: str, rows: list[dict[str, Any]]) -> Table:
    table = _table(kind, "name", "before", "after", "change")
    for row in rows[:NUM_ROWS]:
        change = row["after_ms"] - row["before_ms"]
        sign, style = ("+", "red") if change > 0 else ("-", "green") if change else ("", "dim")
        words = Text(sign + format_ms(abs(change)), style=style)
        name = Text(kernel_label(row["name"])[:80])
        table.add_row(name, format_ms(row["before_ms"]), format_ms(row["after_ms"]), words)
    return table
