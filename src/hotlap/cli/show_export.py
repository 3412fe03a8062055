"""An export on the terminal: what became of each form, what it weighs, and how fast it is beside the model itself."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from hotlap.base.format import (
    UNKNOWN,
    format_bytes,
    format_error,
    format_ms,
    format_ratio,
    format_s,
)
from hotlap.records.measurement import Arm, Comparison
from hotlap.records.run import RunRecord

STYLES = {"faster": "green", "slower": "red", "inconclusive": "yellow"}


def export_table(record: RunRecord) -> Table:
    """A row for the model itself and for each form that was asked for."""
    found: dict[str, Any] = record.extra.get("export") or {}
    title = f"against {found.get('baseline')}, eager, batch {record.config.get('batch')}"
    style = {"header_style": "bold", "title_style": "dim", "title_justify": "left"}
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), title=title, **style)  # type: ignore[arg-type]
    for name in ("form", "size", "load", "error", "a step", "speed", ""):
        table.add_column(name, justify="left" if name in ("form", "") else "right", overflow="fold")
    arms = {arm.name: arm for arm in record.arms}
    heads = {c.arm: c for c in record.comparisons if c.quantity == "wall"}
    forms = found.get("forms") or []
    for arm in record.arms:
        if arm.name not in {row["arm"] for row in forms}:
            name = "eager" if arm.role == "baseline" else "whole arm"
            table.add_row(name, UNKNOWN, UNKNOWN, UNKNOWN, *_speed(arm, heads.get(arm.name)))
    for row in forms:
        table.add_row(*_facts(row), *_outcome(row, arms.get(row["arm"]), heads.get(row["arm"])))
    return table


def _facts(row: dict[str, Any]) -> list[str]:
    known = row["status"] == "right"
    size = format_bytes(row["size_bytes"]) if known else UNKNOWN
    judged = row["status"] in ("right", "wrong")
    return [row["form"], size, format_s(row["load_s"]), format_error(row["error"]) if judged else UNKNOWN]


def _outcome(row: dict[str, Any], arm: Arm | None, head: Comparison | None) -> list[str | Text]:
    if row["status"] != "right":
        words = "wrong answer: not delivered" if row["status"] == "wrong" else row["status"]
        return [UNKNOWN, UNKNOWN, Text(words, style="yellow" if row["status"] == "skipped" else "red")]
    if arm is None:
        return [UNKNOWN, UNKNOWN, Text("right", style="green")]
    return _speed(arm, head)


def _speed(arm: Arm, head: Comparison | None) -> list[str | Text]:
    wall = arm.summary("wall")
    time = format_ms(wall.median) if wall else UNKNOWN
    if arm.error:
        return [time, UNKNOWN, Text("gave no time", style="red")]
    if head is None:
        return [time, "baseline" if arm.role == "baseline" else UNKNOWN, ""]
    return [
        time,
        format_ratio(head.ratio, head.low, head.high),
        Text(head.verdict, style=STYLES.get(head.verdict, "")),
    ]
