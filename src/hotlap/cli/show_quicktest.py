"""A quick test's record on the terminal: a line for each step, with its seconds and the memory after it."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hotlap.base.format import format_bytes, format_s
from hotlap.records.measurement import Check
from hotlap.records.run import RunRecord

_COLOURS = {"PASS": "green", "FAIL": "bold red", "SKIP": "dim"}


def show_quicktest(record: RunRecord, console: Console) -> None:
    """Prints the steps in order, then the verdict."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "step", "time", "memory after", "observed"):
        table.add_column(name, justify="right" if name == "time" else "left", overflow="fold", no_wrap=name == "step")
    for number, check in enumerate(record.checks, start=1):
        quiet = "dim" if check.status == "SKIP" else ""
        cells = (check.status, f"{number} {check.name}", _time(check), _memory(check), check.observed)
        styles = (_COLOURS.get(check.status, ""), *[quiet] * 4)
        table.add_row(*(Text(cell, style=style) for cell, style in zip(cells, styles, strict=True)))
        if check.status == "FAIL" and check.fix:
            table.add_row("", "", "", "", Text.assemble(("fix  ", "cyan"), check.fix))
    console.print(table)
    for note in record.notes:
        console.print(Text(note, style="dim"), soft_wrap=True)
    if record.verdict is not None:
        console.print(Text(record.verdict.headline, style="bold red" if record.verdict.exit_code else "bold green"))
    if record.path:
        console.print(Text(f"Record: {record.path}", style="dim"), soft_wrap=True)


def _time(check: Check) -> str:
    return format_s(check.seconds) if check.seconds else ""


def _memory(check: Check) -> str:
    memory = check.data.get("memory", {})
    if "allocated" in memory:
        return f"{format_bytes(memory['allocated'])} of {format_bytes(memory['reserved'])} reserved"
    return f"{format_bytes(memory['rss'])} RSS" if "rss" in memory else ""
