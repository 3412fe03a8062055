"""Records and progress on the terminal: progress on stderr, results on stdout."""

from __future__ import annotations

import math
import os
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from hotlap.base.events import Event
from hotlap.base.format import (
    UNKNOWN,
    format_bytes,
    format_error,
    format_ms,
    format_ms_interval,
    format_number,
    format_percent,
    format_ratio,
    format_s,
)
from hotlap.cli.columns import Cell, fitted
from hotlap.records.measurement import Arm, Comparison, Gate
from hotlap.records.run import RunRecord

COLOURS = {
    "faster": "green", "slower": "red", "inconclusive": "yellow", "same": "green", "complete": "green",
    "interrupted": "yellow", "running": "cyan", "failed": "red", "stopped": "red", "no regression": "green",
    "regression": "red", "gate failed": "red", "arm failed": "red", "trustworthy": "green", "too noisy": "red",
    "keeps up": "green", "bottleneck": "yellow", "tuned": "green", "nothing found": "red", "verified": "green",
    "nothing faster": "yellow", "nothing right": "red", "mismatch": "red", "profiled": "cyan", "compared": "cyan",
}  # fmt: skip


WORDS = ("arm", "verdict", "check", "")


def make_console(*, stderr: bool = False) -> Console:
    """Where to print. NO_COLOR means no escape codes at all: rich alone would still write bold and move the bar."""
    return Console(stderr=stderr, force_terminal=False if os.environ.get("NO_COLOR") else None)


LOG_EVERY_S = 30.0
"""Where bars cannot be drawn, a phase that goes on is said again after so long."""


class ProgressDoor:
    """Turns a tool's events into bars and lines on stderr; use as a context manager."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console, self._quiet = console, quiet
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=quiet,
        )
        self._tasks: dict[str, Any] = {}
        self._last: dict[str, tuple[str, float]] = {}
        """The phase that was last said of each task, and when."""

    def __enter__(self) -> ProgressDoor:
        if self._console.is_terminal:  # elsewhere no bar is drawn, and its end would be an empty line
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def __call__(self, event: Event) -> None:
        if event.kind in ("note", "warn"):
            if not self._quiet or event.kind == "warn":
                style = "yellow" if event.kind == "warn" else "dim"
                self._console.print(Text(event.text, style=style))
        elif event.kind == "start":
            if event.task in self._tasks:
                self._progress.remove_task(self._tasks[event.task])
            if event.text:
                self._say_plainly(event, event.text)
            self._tasks[event.task] = self._progress.add_task(event.text or event.task, total=event.total)
        elif event.kind == "advance" and event.task in self._tasks:
            self._progress.update(
                self._tasks[event.task], completed=event.done, total=event.total, description=event.text or event.task
            )
            self._say_plainly(event, event.text.partition(":")[0])
        elif event.kind == "finish" and event.task in self._tasks:
            self._progress.remove_task(self._tasks.pop(event.task))
            self._last.pop(event.task, None)

    def _say_plainly(self, event: Event, phase: str) -> None:
        """A line for each new phase where bars cannot be drawn, such as a CI log; and now and then in a long one."""
        clock = time.monotonic()
        said, when = self._last.get(event.task, ("", 0.0))
        if not self._quiet and not self._console.is_terminal and (phase != said or clock - when >= LOG_EVERY_S):
            self._last[event.task] = phase, clock
            share = f" {event.done / event.total:.0%}" if event.total else ""
            self._console.print(Text(f"{event.task}{share}" + (f": {phase}" if phase else "")))


def show_record(record: RunRecord, console: Console) -> None:
    """A record as a person wants it: the verdict first."""
    if record.kind == "doctor":
        from hotlap.cli.show_doctor import show_doctor

        show_doctor(record, console)
        return
    if record.kind == "quicktest":
        from hotlap.cli.show_quicktest import show_quicktest

        show_quicktest(record, console)
        return
    _show_head(record, console)
    if record.kind == "lap":
        from hotlap.cli.show_lap import show_lap

        show_lap(record, console)
    if record.kind == "loader":
        from hotlap.cli.show_loader import loader_table

        console.print(loader_table(record))
    if record.kind == "train":
        from hotlap.cli.show_train import show_training

        show_training(record, console)
    if record.kind == "tune":
        from hotlap.cli.show_tune import show_tune

        show_tune(record, console)
    if record.kind == "profile":
        from hotlap.cli.show_profile import show_profile

        show_profile(record, console)
    if record.kind == "export":
        from hotlap.cli.show_export import export_table

        console.print(export_table(record))
    elif record.arms:
        console.print(_arm_table(record, console.width))
        console.print(_cost_table(record, console.width))
        _show_sides(record, console)
    if "tuned_cpu" in record.extra:
        console.print(_race_table(record.extra["tuned_cpu"], console.width))
    if record.gates and record.kind != "tune":
        console.print(_gate_table(record, console.width))
    for note in dict.fromkeys([*(n for arm in record.arms for n in _named(arm)), *record.notes]):
        console.print(Text("  " + note, style="dim"))
    if record.path:
        console.print(Text(f"record  {record.path}", style="dim"), soft_wrap=True)


def _named(arm: Arm) -> list[str]:
    return [f"{arm.name}: {note}" for note in arm.notes]


def _show_head(record: RunRecord, console: Console) -> None:
    config = record.config
    what = f"{record.kind} {record.name}"
    if record.kind == "bench":
        batch = config.get("batch")  # not known yet where the target was still being loaded
        what += f", {config.get('mode')}" + (f", batch {batch}" if batch else "")
    console.print(Text(what, style="bold"), Text(f"  {record.environment.device_line()}", style="dim"))
    if record.status not in ("complete", "stopped"):  # who stops itself still writes all it has
        console.print(Text(f"{record.status}: this record is not whole", style=COLOURS.get(record.status, "yellow")))
    if record.verdict:
        console.print(Text(record.verdict.headline, style=f"bold {COLOURS.get(record.verdict.outcome, 'cyan')}"))
        for line in record.verdict.lines:
            if line != record.verdict.headline:
                console.print(Text("  " + line))


def _arm_table(record: RunRecord, width: int) -> Table:
    """Speed: what most people came for."""
    rows: list[list[Cell]] = []
    heads = {c.arm: c for c in record.comparisons if c.quantity == "wall" and c.reason != "context arm"}
    wrong = {gate.arm for gate in record.gates if not gate.passed}
    for arm in record.arms:
        wall, head = arm.summary("wall"), heads.get(arm.name)
        step = format_ms_interval(wall.median, wall.low, wall.high) if wall else "-"
        is_wrong = arm.name in wrong
        rows.append([arm.name, step, _speed_cell(arm, head, is_wrong), _verdict_cell(arm, head, is_wrong)])
    return fitted(("arm", "time a step", "speed-up", "verdict"), rows, width=width, words=WORDS)


def _cost_table(record: RunRecord, width: int) -> Table:
    """What the speed costs and what it is made of; a column that nothing is known for is left out."""
    gates = {gate.arm: gate for gate in record.gates}
    columns: dict[str, list[str]] = {
        "arm": [arm.name for arm in record.arms],
        "samples/s": [format_number(arm.samples_per_s) for arm in record.arms],
        "device": [format_ms(s.median) if (s := arm.summary("device")) else UNKNOWN for arm in record.arms],
        "tail": [_tail_cell(arm) for arm in record.arms],
        "J/sample": [format_number(arm.energy_j_per_sample) for arm in record.arms],
        "first": [format_s(arm.first_step_s) for arm in record.arms],
        "memory": [_memory_cell(arm) for arm in record.arms],
        "error": [_error_cell(gates.get(arm.name)) for arm in record.arms],
    }
    known = {name: cells for name, cells in columns.items() if any(cell != UNKNOWN for cell in cells)}
    return fitted(list(known), list(zip(*known.values(), strict=True)), width=width, words=WORDS)


def _error_cell(gate: Gate | None) -> str:
    return format_error(max(check.error for check in gate.checks)) if gate else UNKNOWN


def _speed_cell(arm: Arm, head: Comparison | None, wrong: bool) -> str:
    if wrong or head is None:
        return "baseline" if arm.role == "baseline" and not wrong else "-"
    return format_ratio(head.ratio, head.low, head.high)


def _verdict_cell(arm: Arm, head: Comparison | None, wrong: bool) -> Text:
    if wrong:
        return Text("no speed-up: wrong answer", style="red")
    if arm.error:
        return Text("failed", style="red")
    if head is None:
        return Text("context" if arm.role == "context" else "", style="dim")
    return Text(head.verdict, style=COLOURS.get(head.verdict, ""))


def _tail_cell(arm: Arm) -> str:
    """The highest percentile of single steps that so many samples support."""
    steps = arm.summary("interval")
    if steps is None or not steps.percentiles:
        return UNKNOWN
    name = max(steps.percentiles, key=lambda p: int(p[1:]))
    return f"{name} {format_ms(steps.percentiles[name])}" if name != "p50" else UNKNOWN


def _memory_cell(arm: Arm) -> str:
    memory = arm.memory
    if memory is None:
        return UNKNOWN
    return format_bytes(memory.allocated_bytes if memory.allocated_bytes is not None else memory.host_rss_bytes)


def _show_sides(record: RunRecord, console: Console) -> None:
    for c in record.comparisons:
        figure = format_ratio(c.ratio, c.low, c.high)
        if c.quantity == "transfer":
            console.print(f"  copies to and from the device included, {c.arm} against {c.baseline}: {figure}")
        elif c.reason == "context arm":
            console.print(f"  {c.arm} against {c.baseline} (context, fewer samples): {figure}")
    heads = [c.min_detectable for c in record.comparisons if c.quantity == "wall" and c.reason != "context arm"]
    known = [effect for effect in heads if math.isfinite(effect)]  # of a single process nothing can be said
    if known:
        smallest = format_percent(max(known))
        console.print(f"  a true change of {smallest} would have been seen in four of five such runs")
    break_even = record.extra.get("break_even")
    if break_even:
        console.print(f"  break-even: {break_even['text']}")


def _race_table(race: dict[str, Any], width: int) -> Table:
    rows: list[list[Cell]] = []
    for row in sorted(race["candidates"], key=lambda row: row["median_ms"] or float("inf")):
        wrong = "wrong answer" if row["passed_gate"] is False else row["error"]
        rows.append([row["arm"], format_ms(row["median_ms"]), "chosen" if row["arm"] == race["chosen"] else wrong])
    title = "race for the tuned CPU settings"
    return fitted(("arm", "time a step", ""), rows, width=width, words=WORDS, title=title)


def _gate_table(record: RunRecord, width: int) -> Table:
    rows: list[list[Cell]] = []
    for gate in record.gates:
        for check in gate.checks:
            mark = Text("pass", style="green") if check.passed else Text("FAIL", style="bold red")
            name = gate.arm if check is gate.checks[0] else ""
            rows.append([name, check.name, format_error(check.error), format_error(check.allowed), mark])
    names = ("arm", "check", "error", "allowed", "")
    return fitted(names, rows, width=width, words=WORDS, title="numeric gate")
