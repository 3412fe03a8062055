"""A search on the terminal: the live table with the current best, and the table that is left at the end."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hotlap.base.events import Event
from hotlap.base.format import UNKNOWN, format_bytes, format_ms, format_number, format_percent, format_s
from hotlap.cli.columns import LEAST, broken
from hotlap.records.run import RunRecord

LIVE_ROWS = 8
"""Configurations in sight while the search runs, fewer in a low terminal; the last few failures stand beneath them."""
LIVE_FAILURES = 3
NARROW = 110
"""Columns of a terminal below which percentile and memory are left to the page: the arms need the room."""
GAP = 2
"""Columns between two figures."""
STYLES = {"right": "green", "wrong answer": "red", "refused": "red", "not judged": "dim"}


class TuneDoor:
    """Turns a search's events into a live table on stderr, or into a line a trial where nothing can be redrawn."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console, self._quiet = console, quiet
        self._live = Live(console=console, transient=True, refresh_per_second=2, auto_refresh=False)
        self._line, self._rows, self._last = "", list[dict[str, Any]](), ""

    def __enter__(self) -> TuneDoor:
        if not self._quiet and self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        if event.kind in ("note", "warn"):
            if not self._quiet or event.kind == "warn":
                self._console.print(Text(event.text, style="yellow" if event.kind == "warn" else "dim"))
            return
        if event.kind == "result":
            self._rows = event.data.get("rows", [])
        elif event.kind in ("start", "advance"):
            share = f"{event.done / event.total:.0%} of the budget, " if event.total else ""
            self._line = f"{share}{event.text}"
            self._say_plainly(event)
        if self._live.is_started:
            self._live.update(self._fitting(), refresh=True)

    def _fitting(self) -> Group:
        """The table over what is done next, in as many lines as the terminal has: of more the end would not be seen."""
        for most in range(LIVE_ROWS, 0, -1):
            table = tune_table(_in_sight(self._rows, most), width=self._console.width)
            seen = Group(table, Text(self._line, style="dim"))
            if len(self._console.render_lines(seen)) <= self._console.height:
                break
        return seen

    def _say_plainly(self, event: Event) -> None:
        if self._quiet or self._console.is_terminal or event.text == self._last:
            return
        self._last = event.text
        best = next((row for row in self._rows if row.get("is_best")), None)
        told = f" (best so far {best['arm']} at batch {best['batch']}, {format_number(best['rate'])}/s)" if best else ""
        self._console.print(Text(f"tune: {self._line}{told}"), soft_wrap=True)


def _in_sight(rows: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """The fastest, the best among them or beneath them, and the last few failures."""
    ran = [row for row in rows if row.get("rate")]
    best = [row for row in ran[most:] if row.get("is_best")]  # by latency or memory it need not be a fast one
    return ran[: most - len(best)] + best + [row for row in rows if not row.get("rate")][-min(most, LIVE_FAILURES) :]


def tune_table(rows: list[dict[str, Any]], winner: dict[str, Any] | None = None, *, width: int = 80) -> Table:
    """A row for each configuration, the error beside the speed; the best, or the winner, in bold.

    In ``width`` columns the arms get what the figures leave, and are broken between their options.
    """
    narrow = width < NARROW
    table = Table(box=None, pad_edge=False, header_style="bold")
    seldom = ("p95", "peak")
    columns = ("arm", "batch", "samples/s", "a step", *(() if narrow else seldom), "error of\nallowed", "")
    for column in columns:
        table.add_column(column, justify="left" if column in ("arm", "") else "right", overflow="fold")
    chosen = [
        (row["arm"], row["batch"]) == (winner["arm"], winner["batch"]) if winner else bool(row.get("is_best"))
        for row in rows
    ]
    lines = [_cells(row, is_chosen, winner is not None) for row, is_chosen in zip(rows, chosen, strict=True)]
    if narrow:
        lines = [line[:4] + line[6:] for line in lines]
    room = width - sum(
        GAP + max(len(part) for cell in cells for part in str(cell).split("\n"))
        for cells in list(zip(columns, *lines, strict=True))[1:]
    )
    for (name, *figures), is_chosen in zip(lines, chosen, strict=True):
        table.add_row(broken(str(name), max(LEAST, room)), *figures, style="bold" if is_chosen else "")
    return table


def _cells(row: dict[str, Any], chosen: bool, decided: bool) -> list[str | Text]:
    status = str(row.get("status", ""))
    if not row.get("rate"):
        return [row["arm"], str(row["batch"]), *[UNKNOWN] * 5, Text(status, style="yellow")]
    word = ("chosen" if decided else "best so far") if chosen else status
    return [
        row["arm"],
        str(row["batch"]),
        format_number(row["rate"]),
        format_ms(row.get("p50_ms")),
        format_ms(row.get("p95_ms")),
        format_bytes(row.get("peak_bytes")),
        format_percent(row["error"]) if row.get("error") is not None else UNKNOWN,
        Text(word, style="green" if chosen else STYLES.get(status, "")),
    ]


def show_tune(record: RunRecord, console: Console) -> None:
    """What a search left: its table, and where the profile lies."""
    from hotlap.records.codec import decode
    from hotlap.tools.tune.goal import Goal
    from hotlap.tools.tune.rows import GateRow, Row
    from hotlap.tools.tune.verdict import headline_rows

    found = record.extra.get("tune") or {}
    if not found:  # it was stopped while the target was loaded
        return
    rows = [decode(Row, row) for row in found.get("rows", [])]
    gates = {gate.arm: gate for gate in (decode(GateRow, gate) for gate in found.get("gates", []))}
    goal = Goal(record.config.get("objective", ""), record.config.get("p95_ms"))
    if rows:
        table = headline_rows(rows, gates, goal)
        if record.status == "complete" and not found.get("winner"):
            table = [{**row, "is_best": False} for row in table]  # none will be chosen any more
        console.print(tune_table(table, found.get("winner"), width=console.width))
    spent, budget = found.get("spent_s"), found.get("budget_s")
    console.print(
        Text(f"  spent {format_s(spent)} of {format_s(budget)}; objective: {found.get('goal', '')}", style="dim")
    )
    if found.get("stored"):
        console.print(Text(f"profile {found['stored']}", style="dim"), soft_wrap=True)
