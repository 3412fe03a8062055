"""A doctor's record on the terminal: a line for each check, reason and fix where something is wrong."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hotlap.records.measurement import Check
from hotlap.records.run import RunRecord

_COLOURS = {"PASS": "green", "WARN": "yellow", "FAIL": "bold red", "SKIP": "dim"}


def show_doctor(record: RunRecord, console: Console) -> None:
    """Prints the checks by group, then the counts and the verdict."""
    width = max((len(check.name) for check in record.checks), default=0)
    for group, checks in groupby(record.checks, key=lambda check: check.group):
        console.print(Text(group, style="bold"))
        console.print(_group_table(list(checks), width))
    for note in record.notes:
        console.print(Text(note, style="dim"), soft_wrap=True)
    if record.verdict is not None:
        style = "bold red" if record.verdict.exit_code else "bold green"
        console.print(Text(record.verdict.headline, style=style))
    if record.path:
        console.print(Text(f"Record: {record.path}", style="dim"), soft_wrap=True)


def _group_table(checks: list[Check], width: int) -> Table:
    """A row for each check; skips for one reason share a row, so that a machine without a card stays short."""
    table = Table.grid(padding=(0, 1))
    table.add_column(width=1)
    table.add_column(width=4)
    table.add_column(width=width)
    table.add_column(overflow="fold")
    for _, same in groupby(checks, key=lambda check: check.observed if check.status == "SKIP" else check.name):
        members = list(same)
        if len(members) > 1:
            names = ", ".join(member.name for member in members)
            reason = f"{len(members)} checks: {members[0].observed} ({names})"
            table.add_row("", Text("SKIP", style="dim"), "", Text(reason, style="dim"))
        else:
            _add_check(table, members[0])
    return table


def _add_check(table: Table, check: Check) -> None:
    quiet = "dim" if check.status == "SKIP" else ""
    status = Text(check.status, style=_COLOURS.get(check.status, ""))
    table.add_row("", status, Text(check.name, style=quiet), Text(check.observed, style=quiet))
    if check.status in ("WARN", "FAIL"):
        for label, text in (("why", check.why), ("fix", check.fix)):
            if text:
                table.add_row("", "", "", Text.assemble((f"{label}  ", "cyan"), text))
