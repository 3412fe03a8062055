"""A loader's record on the terminal: each setting's rate beside what the model consumes."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from hotlap.base.format import UNKNOWN, format_bytes, format_ms, format_number, format_ratio, format_s
from hotlap.records.run import RunRecord


def loader_table(record: RunRecord) -> Table:
    """A row for each setting that was tried or refused, the chosen one marked."""
    found: dict[str, Any] = record.extra.get("loader") or {}
    consumption = found.get("consumption")
    title = f"the model takes {format_number(consumption)} samples/s: {found.get('batch')} in "
    title += f"{format_ms(found.get('step_ms'))}{_range(found)}, {record.config.get('arm')}"
    table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left", title_style="dim")
    for column, justify in (("settings", "left"), ("samples/s", "right"), ("of consumption", "right"),
                            ("first batch", "right"), ("a worker's own memory", "right"), ("", "left")):  # fmt: skip
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in found.get("rows", []):
        table.add_row(*_cells(row, consumption), style="bold" if row.get("chosen") else "")
    return table


def _range(found: dict[str, Any]) -> str:
    """The lowest and the highest sample of the step; '' for a time that was given."""
    low, high = found.get("step_low_ms"), found.get("step_high_ms")
    return f" (samples from {format_ms(low)} to {format_ms(high)})" if low is not None and high is not None else ""


def _cells(row: dict[str, Any], consumption: float | None) -> list[str | Text]:
    if row.get("refused"):
        return [row["label"], UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, Text(f"refused: {row['refused']}", style="yellow")]
    rate, low, high, speed = row.get("rate"), row.get("low"), row.get("high"), row.get("speed") or {}
    times = [value / consumption if value is not None and consumption else None for value in (rate, low, high)]
    memory = speed.get("worker_bytes")
    return [
        row["label"],
        format_number(rate),
        format_ratio(*times) if times[0] is not None else UNKNOWN,
        format_s(speed.get("start_s")),
        format_bytes(memory) if memory else UNKNOWN,
        Text("chosen", style="green") if row.get("chosen") else "",
    ]
