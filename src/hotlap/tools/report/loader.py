"""A loader's record: the rate of each setting against what the model consumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hotlap.base.format import format_number, format_ratio
from hotlap.records.run import RunRecord
from hotlap.tools.report.charts import EDGE, gutter, row_label
from hotlap.tools.report.svg import Scale, fit_scale, fit_text, is_wide, line, rect, svg, text, text_px, x_axis

LOG_FROM = 30.0
"""Rates and consumption further apart than this many times share a log axis."""


@dataclass(frozen=True, kw_only=True)
class RateRow:
    """One setting: its rate with the interval, or why there is none."""

    label: str
    rate: float | None = None
    low: float | None = None
    high: float | None = None
    refused: str = ""
    chosen: bool = False


def rate_rows(record: RunRecord) -> list[RateRow]:
    """The settings of a loader's record, in the order they were tried."""
    return [
        RateRow(
            label=str(row.get("label", "")),
            rate=row.get("rate"),
            low=row.get("low"),
            high=row.get("high"),
            refused=str(row.get("refused") or ""),
            chosen=bool(row.get("chosen")),
        )
        for row in _found(record).get("rows") or []
    ]


def consumption_lines(record: RunRecord) -> tuple[float, float] | None:
    """What the model consumes, and what a loader with workers must deliver, in samples a second."""
    consumption, headroom = _found(record).get("consumption"), _found(record).get("headroom")
    if not isinstance(consumption, (int, float)) or not isinstance(headroom, (int, float)):
        return None
    return float(consumption), float(consumption * headroom)


def _found(record: RunRecord) -> dict[str, Any]:
    found = record.extra.get("loader")
    return found if isinstance(found, dict) else {}


def refusals(record: RunRecord) -> list[str]:
    """The settings that were refused, each with its reason."""
    return [f"{row.label}: {row.refused}." for row in rate_rows(record) if row.refused]


def rates(rows: Sequence[RateRow], marks: tuple[float, float] | None, width: float) -> str:
    """A bar for each setting, with a line at the model's consumption and a dashed one at what is asked for."""
    left = gutter([row.label for row in rows], width)
    known = [row.rate for row in rows if row.rate is not None] + list(marks or ())
    log = is_wide(known, LOG_FROM)
    room = max((text_px(_value(row, marks)) for row in rows if row.rate is not None), default=0.0) + 12
    end = width - EDGE - min(room, 0.4 * width)
    scale = fit_scale(known, left + EDGE, end, log=log, zero=not log, pad=0.12 if log else 0.02)
    pitch, head = (30.0, 0.0) if left else (46.0, 18.0)
    bottom = 8 + pitch * len(rows)
    ticks = [(value, format_number(value)) for value in scale.ticks(6 if left else 3)]
    parts = [x_axis(scale, 2, bottom, ticks, "samples/s" + (", log" if scale.log else ""))]
    words = []
    for index, row in enumerate(rows):
        y = 6 + index * pitch
        centre = y + head + (pitch - head) / 2
        parts.append(_bar(row, marks, scale, centre))
        words.append(row_label(row.label, left, y, width, centre) + _words(row, marks, scale, centre, width))
    # The lines cross the bars, and words stand above the lines.
    for value, css, name in zip(marks or (), ("one", "cross"), ("the model's consumption", "asked for"), strict=False):
        parts.append(line(scale(value), 2, scale(value), bottom, css, f"{name}: {format_number(value)} samples/s"))
    spoken = "; ".join(f"{row.label} {row.refused or _value(row, marks)}" for row in rows)
    return svg(width, bottom + 40, f"Samples a second by setting: {spoken}", "".join(parts + words))


def _bar(row: RateRow, marks: tuple[float, float] | None, scale: Scale, y: float) -> str:
    if row.rate is None:
        return ""
    tip = f"{row.label}: {_value(row, marks)}"
    low, high = (row.rate if v is None else v for v in (row.low, row.high))
    tone, shade = ("good", "solid") if row.chosen else ("a0", "soft")
    return (
        rect(scale.start, y - 8, max(scale(row.rate) - scale.start, 1.5), 16, f"{tone} {shade}", tip, 2)
        + line(scale(low), y, scale(high), y, f"whisker {tone}", tip)
        + line(scale(low), y - 4, scale(low), y + 4, f"whisker {tone}")
        + line(scale(high), y - 4, scale(high), y + 4, f"whisker {tone}")
    )


def _words(row: RateRow, marks: tuple[float, float] | None, scale: Scale, y: float, width: float) -> str:
    """A rate at the end of its bar, or why there is none."""
    if row.rate is None:
        why = f"refused: {row.refused}" if row.refused else "not measured"
        return text(scale.start + 4, y + 4, fit_text(why, width - scale.start - 4), "muted strong")
    end = scale(max(row.rate, row.high or row.rate))
    return text(end + 8, y + 4, _value(row, marks), "value strong" if row.chosen else "value")


def _value(row: RateRow, marks: tuple[float, float] | None) -> str:
    times = f", {format_ratio(row.rate / marks[0])}" if marks and row.rate is not None else ""
    return f"{format_number(row.rate)}{times}" + (" chosen" if row.chosen else "")
