"""A training's record on the terminal: what was reached, how fast, in how much memory, and where it lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hotlap.base.format import UNKNOWN, format_bytes, format_count, format_number, format_rate
from hotlap.records.run import RunRecord

CHECKPOINT = "checkpoint"


def show_training(record: RunRecord, console: Console) -> None:
    """A line for each thing worth knowing; of a run that failed, what its settings and folder tell."""
    rows = training_rows(record)
    width = max((len(name) for name, _ in rows), default=0)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True, min_width=width)
    table.add_column(overflow="fold")
    for name, value in rows:
        if not name.endswith(CHECKPOINT):
            table.add_row(name, Text(value))
    console.print(table)
    for name, value in rows:
        if name.endswith(CHECKPOINT):  # a path is copied from its line, so it is not broken
            console.print(Text.assemble((f"{name:{width}}  ", "dim"), value), soft_wrap=True)


def training_rows(record: RunRecord) -> list[tuple[str, str]]:
    """What the table says, by name."""
    outcome: dict[str, Any] = record.extra.get("outcome", {})
    rows = [("reached", _reached(record, outcome)), ("metrics", _metrics(outcome)), ("best", _best(record, outcome))]
    rows += [("speed", format_rate(outcome.get("samples_per_s"))), ("memory", _memory(outcome))]
    rows += [("micro-batch", _micro(record, outcome)), ("restarts", _restarts(record))]
    rows += [(f"{which} {CHECKPOINT}", outcome.get(f"{which}_checkpoint") or UNKNOWN) for which in ("best", "last")]
    if outcome.get("num_bad_samples"):
        rows.append(("bad samples", f"{outcome['num_bad_samples']}, in {Path(record.path).parent / 'bad_samples.txt'}"))
    return [(name, value) for name, value in rows if value and value != UNKNOWN]


def _reached(record: RunRecord, outcome: dict[str, Any]) -> str:
    if not outcome:
        return ""
    whole = record.config.get("epochs")  # a bridge's record has none: its trainer counts them
    epochs = format_count(outcome["epoch"], "epoch") + (f" of {whole}" if whole else "")
    resumed = f", resumed from step {outcome['resumed_from']}" if outcome.get("resumed_from") is not None else ""
    return f"step {outcome['step']}, {epochs}{resumed}"


def _metrics(outcome: dict[str, Any]) -> str:
    return ", ".join(f"{name} {format_number(value, 4)}" for name, value in outcome.get("metrics", {}).items())


def _best(record: RunRecord, outcome: dict[str, Any]) -> str:
    best = outcome.get("best")
    return f"{record.config.get('monitor')} {format_number(best, 4)}" if best is not None else ""


def _memory(outcome: dict[str, Any]) -> str:
    device, host = outcome.get("peak_bytes"), outcome.get("host_peak_bytes")
    parts = [f"{format_bytes(device)} on the device"] if device else []
    return ", ".join([*parts, f"{format_bytes(host)} on the host"]) + " at most" if host else ""


def _micro(record: RunRecord, outcome: dict[str, Any]) -> str:
    if not outcome:
        return ""
    size = outcome.get("micro")
    splits = outcome.get("num_splits", 0)
    told = f"; memory ran out {format_count(splits, 'time')}" if splits else ""
    return (f"{format_count(size, 'sample')} at a time" if size else "the whole batch at a time") + told


def _restarts(record: RunRecord) -> str:
    restarts = record.extra.get("restarts", [])
    earlier = len(record.extra.get("earlier", []))
    parts = [f"{len(restarts)} after a death"] if restarts else []
    return ", ".join(parts + ([f"resumed {format_count(earlier, 'time')}"] if earlier else []))
