"""Charts of single numbers: the forest of speed-ups, two clocks, memory, breaches of the gate, ceilings.

Each takes rows and a width in pixels and returns one SVG. Below ``ROOMY`` pixels a row's label stands above its marks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hotlap.base.format import format_bytes, format_ms, format_number, format_percent, format_ratio
from hotlap.tools.report.svg import (
    NAME_PX,
    Scale,
    circle,
    fit_scale,
    fit_text,
    is_wide,
    line,
    n,
    rect,
    svg,
    text,
    text_px,
    x_axis,
)

ROOMY = 560
EDGE = 14.0
"""Free pixels at the left and right of a plot, so that marks and tick labels at its ends are whole."""


@dataclass(frozen=True, kw_only=True)
class ForestRow:
    """A speed-up to draw, or the reason why there is none."""

    label: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    tone: str = "muted"
    """good, bad, warn or muted."""
    note: str = ""
    """Stands in place of the marks when there is no ratio."""


@dataclass(frozen=True, kw_only=True)
class ClockRow:
    """The two clocks of one arm, in ms per iteration."""

    label: str
    css: str
    wall: float
    device: float

    @property
    def launch_bound(self) -> float:
        """The share of the wall time in which the device had nothing to do."""
        return max(0.0, 1.0 - self.device / self.wall) if self.wall > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class BarRow:
    """One label with one or more bars beneath one another."""

    label: str
    bars: Sequence[tuple[str, float, str]]
    """What, how much, and the CSS class of its colour."""


def gutter(labels: Sequence[str], width: float) -> float:
    """Pixels kept at the left for labels; 0 when they stand above their rows."""
    if width < ROOMY:
        return 0.0
    return min(NAME_PX * max((len(label) for label in labels), default=0) + 18, 0.32 * width)


def row_label(label: str, left: float, y: float, width: float, centre: float) -> str:
    """A row's name: in the gutter at the height of its marks, or above them."""
    if left:
        return text(left - 14, centre + 4, fit_text(label, left - 14, NAME_PX), "name", "end")
    return text(0, y + 12, fit_text(label, width, NAME_PX), "name")


def forest(rows: Sequence[ForestRow], width: float) -> str:
    """A point and an interval for each speed-up, with a line at 1x; log axis when the ratios are wide apart."""
    left = gutter([row.label for row in rows], width)
    pitch, head = (34.0, 0.0) if left else (50.0, 18.0)
    values = [v for row in rows for v in (row.ratio, row.low, row.high) if v is not None] + [1.0]
    scale = fit_scale(values, left + EDGE, width - EDGE, log=is_wide(values, 4))
    bottom = 6 + pitch * len(rows)
    ticks = [(v, f"{format_number(v, 4).rstrip('0').rstrip('.') if v < 1000 else format_number(v)}x")
             for v in scale.ticks(7 if left else 4)]  # fmt: skip
    parts = [x_axis(scale, 2, bottom, ticks, "times as fast as the baseline" + (", log" if scale.log else ""))]
    parts.append(line(scale(1), 0, scale(1), bottom, "one"))
    for index, row in enumerate(rows):
        y = 6 + index * pitch
        centre = y + head + (pitch - head) / 2
        parts.append(row_label(row.label, left, y, width, centre))
        parts.append(_forest_mark(row, scale, centre, width))
    label = "Speed-ups: " + "; ".join(f"{r.label} {r.note or format_ratio(r.ratio, r.low, r.high)}" for r in rows)
    return svg(width, bottom + 40, label, "".join(parts))


def _forest_mark(row: ForestRow, scale: Scale, y: float, width: float) -> str:
    if row.ratio is None or not math.isfinite(row.ratio):
        right_of_one = scale(1) + 10 + 1.1 * text_px(row.note) < width
        x = scale(1) + 10 if right_of_one else scale.start + 4
        return text(x, y + 4, fit_text(row.note, width - x), f"{row.tone} strong")
    tip = f"{row.label}: {format_ratio(row.ratio, row.low, row.high)}"
    low, high = (row.ratio if v is None or math.isnan(v) else v for v in (row.low, row.high))
    return (
        line(scale(low), y, scale(high), y, f"interval {row.tone}", tip)
        + line(scale(low), y - 5, scale(low), y + 5, f"whisker {row.tone}")
        + line(scale(high), y - 5, scale(high), y + 5, f"whisker {row.tone}")
        + circle(scale(row.ratio), y, 5.5, f"point {row.tone}", tip)
    )


def clocks(rows: Sequence[ClockRow], width: float) -> str:
    """Wall and device time of each arm as a pair of bars, each arm on its own scale, the gap between them named."""
    left = gutter([row.label for row in rows], width)
    value_px = 104.0
    head = 0.0 if left else 18.0
    pitch = 48.0 + head
    parts = []
    for index, row in enumerate(rows):
        y = 4 + index * pitch
        top = y + head
        scale = Scale(0.0, max(row.wall, row.device, 1e-12), left, width - value_px)
        parts.append(row_label(row.label, left, y, width, top + 16))
        parts.append(_clock_pair(row, scale, top))
    label = "Wall and device time: " + "; ".join(
        f"{r.label} wall {format_ms(r.wall)}, device {format_ms(r.device)}" for r in rows
    )
    return svg(width, 4 + pitch * len(rows), label, "".join(parts))


def _clock_pair(row: ClockRow, scale: Scale, top: float) -> str:
    share = format_percent(row.launch_bound)
    wall_end, device_end = scale(row.wall), scale(row.device)
    parts = [
        rect(scale.start, top, wall_end - scale.start, 14, f"{row.css} solid", f"wall: {format_ms(row.wall)}", 2),
        text(scale.end + 8, top + 11, f"{format_ms(row.wall)} wall", "value"),
        rect(scale.start, top + 18, device_end - scale.start, 14, f"{row.css} soft",
             f"device: {format_ms(row.device)}", 2),
        text(scale.end + 8, top + 29, f"{format_ms(row.device)} device", "value"),
    ]  # fmt: skip
    if wall_end - device_end > 1:
        tip = f"{share} of the wall time the device waits to be given work"
        parts.append(rect(device_end, top + 18, wall_end - device_end, 14, "gap", tip, 2))
    words = f"launch-bound {share}"
    inside = wall_end - device_end > text_px(words) + 12
    if inside:
        parts.append(text((wall_end + device_end) / 2, top + 29, words, "tick", "middle"))
    elif device_end - scale.start > text_px(words) + 16:
        parts.append(text(device_end - 8, top + 29, words, "tick over", "end"))
    return "".join(parts)


def bars(rows: Sequence[BarRow], width: float, *, what: str, form: str = "bytes") -> str:
    """Bars from zero on one linear scale, each with its name and number at its end."""
    write = format_bytes if form == "bytes" else format_number
    left = gutter([row.label for row in rows], width)
    ends = [f"{write(value)} {name}" for row in rows for name, value, _ in row.bars]
    room = min(max((text_px(end) for end in ends), default=0.0) + 14, 0.5 * width)
    scale = fit_scale([v for row in rows for _, v, _ in row.bars], left, width - room, zero=True, pad=0.0)
    head = 0.0 if left else 18.0
    parts, y = [], 4.0
    for row in rows:
        height = 17.0 * len(row.bars)
        parts.append(row_label(row.label, left, y, width, y + head + height / 2 - 1))
        for index, (name, value, css) in enumerate(row.bars):
            top = y + head + 17 * index
            tip = f"{row.label}, {name}: {write(value)}"
            end = max(scale(value), scale.start + 1.5)
            parts.append(rect(scale.start, top, end - scale.start, 13, css, tip, 2))
            parts.append(text(end + 7, top + 10.5, fit_text(f"{write(value)} {name}", width - end - 7), "value"))
        y += head + height + 14
    label = f"{what}: " + "; ".join(
        f"{r.label} " + ", ".join(f"{name} {write(v)}" for name, v, _ in r.bars) for r in rows
    )
    return svg(width, y, label, "".join(parts))


def breach(error: float, allowed: float, scale: Scale) -> str:
    """A bar of error over what is allowed, on a log scale shared by a table's rows; beyond the line it fails.

    Hidden from readers of the page by voice: both numbers stand beside it.
    """
    share = breach_share(error, allowed)
    tone = "bad" if share > 1 else "good"
    body = line(scale.start, 8, scale.end, 8, "track")
    body += rect(scale.start, 4, max(scale(share) - scale.start, 1.5), 8, f"{tone} solid")
    body += line(scale(1), 0, scale(1), 16, "one")
    return f'<svg viewBox="0 0 {n(scale.end + 2)} 16" width="{n(scale.end + 2)}" aria-hidden="true">{body}</svg>'


def breach_share(error: float, allowed: float) -> float:
    """Error over allowed; infinite for an error that is not finite, and for any error where none is allowed."""
    if not math.isfinite(error):
        return math.inf
    if error == 0:
        return 0.0
    return error / allowed if allowed > 0 else math.inf


def breach_scale(shares: Sequence[float], width: float) -> Scale:
    """One log scale for all checks, with the limit always well inside."""
    known = [s for s in shares if math.isfinite(s) and s > 0]
    low, high = min([*known, 1e-2]), max([*known, 10.0])
    return Scale(max(low, 1e-12) / 2, min(high, 1e12) * 2, 2.0, width - 2, log=True)
