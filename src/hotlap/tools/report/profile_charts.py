"""Charts of a profile: the step as one bar, modules, the memory timeline, the roofline, two profiles side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hotlap.base.format import format_bytes, format_ms, format_number, format_percent, format_ratio
from hotlap.tools.report.charts import EDGE, gutter, row_label
from hotlap.tools.report.svg import (
    Scale,
    byte_ticks,
    circle,
    fit_scale,
    fit_text,
    line,
    polyline,
    rect,
    svg,
    text,
    text_px,
    x_axis,
    y_axis,
)


@dataclass(frozen=True, kw_only=True)
class Slice:
    """One share of a bar."""

    name: str
    ms: float
    share: float
    css: str


@dataclass(frozen=True, kw_only=True)
class SplitRow:
    """One name with two times on top of each other."""

    label: str
    first_ms: float
    second_ms: float


@dataclass(frozen=True, kw_only=True)
class Dot:
    """One operator on the roofline."""

    label: str
    intensity: float
    tflops: float
    ms: float
    distance: float | None
    css: str


@dataclass(frozen=True, kw_only=True)
class ChangeRow:
    """One name before and after."""

    label: str
    before_ms: float
    after_ms: float


def stacked(slices: Sequence[Slice], width: float) -> str:
    """The step as one bar from left to right, each share named inside where it has room."""
    scale = Scale(0.0, 1.0, 0.0, width)
    parts, at = [], 0.0
    for piece in slices:
        x, end = scale(at), scale(min(at + piece.share, 1.0))
        tip = f"{piece.name}: {format_ms(piece.ms)}, {format_percent(piece.share)}"
        parts.append(rect(x, 0, max(end - x - 1, 0.6), 40, piece.css, tip, 2))
        words = format_percent(piece.share)
        if end - x > text_px(words) + 10:
            parts.append(text((x + end) / 2, 56, words, "tick", "middle"))
        at += piece.share
    spoken = "; ".join(f"{s.name} {format_percent(s.share)}" for s in slices)
    return svg(width, 62, f"The step's time: {spoken}", "".join(parts))


def shares(slices: Sequence[Slice], width: float) -> str:
    """A bar for each part, with its time and share at the end."""
    left = gutter([piece.name for piece in slices], width)
    ends = [f"{format_ms(s.ms)}, {format_percent(s.share)}" for s in slices]
    room = max((text_px(end) for end in ends), default=0.0) + 14
    scale = fit_scale([s.ms for s in slices], left, width - room, zero=True, pad=0.0)
    head = 0.0 if left else 18.0
    parts = []
    for index, (piece, words) in enumerate(zip(slices, ends, strict=True)):
        y = 2 + index * (22.0 + head)
        end = max(scale(piece.ms), scale.start + 1.5)
        parts.append(row_label(piece.name, left, y, width, y + head + 8))
        parts.append(rect(scale.start, y + head, end - scale.start, 15, piece.css, f"{piece.name}: {words}", 2))
        parts.append(text(end + 7, y + head + 12, words, "value"))
    spoken = "; ".join(f"{s.name} {words}" for s, words in zip(slices, ends, strict=True))
    return svg(width, 6 + (22.0 + head) * len(slices), spoken, "".join(parts))


def split_bars(rows: Sequence[SplitRow], names: tuple[str, str], width: float) -> str:
    """Two times of each row, end to end, the first solid and the second soft."""
    left = gutter([row.label for row in rows], width)
    room = 84.0
    scale = fit_scale([row.first_ms + row.second_ms for row in rows], left, width - room, zero=True, pad=0.0)
    head = 0.0 if left else 18.0
    parts = []
    for index, row in enumerate(rows):
        y = 2 + index * (22.0 + head)
        middle, end = scale(row.first_ms), scale(row.first_ms + row.second_ms)
        parts.append(row_label(row.label, left, y, width, y + head + 8))
        for x, stop, name, ms, css in (
            (scale.start, middle, names[0], row.first_ms, "a1 solid"),
            (middle, end, names[1], row.second_ms, "a1 soft"),
        ):
            tip = f"{row.label}, {name}: {format_ms(ms)}"
            parts.append(rect(x, y + head, max(stop - x, 0.5), 15, css, tip, 2) if ms > 0 else "")
        parts.append(text(end + 7, y + head + 12, format_ms(row.first_ms + row.second_ms), "value"))
    spoken = "; ".join(f"{row.label} {format_ms(row.first_ms + row.second_ms)}" for row in rows)
    return svg(width, 6 + (22.0 + head) * len(rows), spoken, "".join(parts))


def memory_line(times: Sequence[float], sizes: Sequence[float], peak_at: float, peak: float, width: float) -> str:
    """Bytes given out over time, as steps, with the peak marked."""
    height, left = 180.0, 74.0
    x = fit_scale([*times, 0.0], left, width - EDGE, pad=0.0)
    y = fit_scale([*sizes, peak], height, 12.0, zero=True, pad=0.04)
    points: list[tuple[float, float]] = []
    for time, size in zip(times, sizes, strict=True):
        if points:
            points.append((x(time), points[-1][1]))
        points.append((x(time), y(size)))
    ticks = [(value, format_bytes(value)) for value in byte_ticks(y.high, 4)]
    marks = [(value, format_ms(value)) for value in x.ticks(6 if width > 500 else 3)]
    label = f"peak {format_bytes(peak)}"
    at = x(peak_at)
    side = "end" if at > width / 2 else "start"
    parts = [
        y_axis(y, left, width - EDGE, ticks),
        x_axis(x, 12, height, marks, "since the first traced step began"),
        polyline(points, "a1"),
        circle(at, y(peak), 4.5, "point bad", f"{label} at {format_ms(peak_at)}"),
        text(at - 9 if side == "end" else at + 9, max(y(peak) - 7, 10), label, "value strong", side),
    ]
    return svg(width, height + 40, f"Memory over time, {label} at {format_ms(peak_at)}", "".join(parts))


def roof(dots: Sequence[Dot], ceilings: dict[str, float], width: float) -> str:
    """Rate over arithmetic intensity, both logarithmic, under the measured ceilings."""
    height, left = 320.0, 66.0
    copy = ceilings.get("copy")
    peaks = {name: value for name, value in ceilings.items() if name != "copy"}
    known = [d for d in dots if d.intensity > 0 and d.tflops > 0]
    ridges = [peak * 1e3 / copy for peak in peaks.values()] if copy else []
    x = fit_scale([*(d.intensity for d in known), *ridges], left, width - EDGE, log=True, pad=0.12)
    rates = [d.tflops for d in known]
    y = fit_scale([*rates, *peaks.values()], height, 14.0, log=True, pad=0.06)
    x_ticks = [(value, format_number(value, 2)) for value in x.ticks(7 if width > 500 else 4)]
    y_ticks = [(value, format_number(value, 2)) for value in y.ticks(6)]
    parts = [
        y_axis(y, left, width - EDGE, y_ticks),
        x_axis(x, 14, height, x_ticks, "floating-point operations for each byte moved, log"),
        text(0, 10, "TFLOP/s", "axis"),
    ]
    ranked = sorted(peaks.items(), key=lambda item: -item[1])
    parts += [_ceiling(name, peak, copy, x, y, place) for place, (name, peak) in enumerate(ranked)]
    if copy and peaks:
        parts.append(_slope(copy, max(peaks.values()), x, y))
    longest = max((d.ms for d in known), default=1.0)
    for dot in sorted(known, key=lambda d: -d.ms):
        far = f", {format_ratio(dot.distance)} its time at the ceiling" if dot.distance else ""
        tip = f"{dot.label}: {format_ms(dot.ms)} a step, {format_number(dot.tflops)} TFLOP/s{far}"
        parts.append(
            circle(x(dot.intensity), y(dot.tflops), 3 + 9 * math.sqrt(dot.ms / longest), f"{dot.css} medium", tip)
        )
    return svg(width, height + 40, f"Roofline of {len(known)} operators", "".join(parts))


def _ceiling(name: str, peak: float, copy: float | None, x: Scale, y: Scale, place: int) -> str:
    """A flat line from where the bandwidth's slope reaches it; the highest is named above, the others beneath."""
    ridge = min(max(peak * 1e3 / copy, x.low), x.high) if copy else x.low
    words = f"{name} {format_number(peak)} TFLOP/s"
    css = "one" if place % 2 == 0 else "cross"
    return line(x(ridge), y(peak), x.end, y(peak), css, f"measured: {words}") + text(
        x.end, y(peak) + (13 if place else -5), words, "tick", "end"
    )


def _slope(copy: float, highest: float, x: Scale, y: Scale) -> str:
    """The line on which memory is the limit: rate = bandwidth x intensity."""
    first = max(x.low, y.low * 1e3 / copy)
    last = min(x.high, highest * 1e3 / copy)
    if last <= first:
        return ""
    words = f"{format_number(copy)} GB/s"
    x1, y1, x2, y2 = x(first), y(first * copy / 1e3), x(last), y(last * copy / 1e3)
    return line(x1, y1, x2, y2, "one", f"measured: copies at {words}") + text(
        (x1 + x2) / 2 - 8, (y1 + y2) / 2 - 6, words, "tick", "end"
    )


def changes(rows: Sequence[ChangeRow], width: float) -> str:
    """Before and after of each name as two bars, on one scale."""
    left = gutter([row.label for row in rows], width)
    scale = fit_scale([v for r in rows for v in (r.before_ms, r.after_ms)], left, width - 130, zero=True, pad=0.0)
    head = 0.0 if left else 18.0
    pitch = 36.0 + head
    parts = []
    for index, row in enumerate(rows):
        y = 2 + index * pitch
        parts.append(row_label(row.label, left, y, width, y + head + 14))
        more = row.after_ms - row.before_ms
        tone = "bad" if more > 0 else "good"
        for offset, ms, css, name in (
            (0, row.before_ms, "a0 soft", "before"),
            (14, row.after_ms, f"{tone} solid", "after"),
        ):
            end = max(scale(ms), scale.start + 1.0)
            parts.append(
                rect(
                    scale.start,
                    y + head + offset,
                    end - scale.start,
                    12,
                    css,
                    f"{row.label}, {name}: {format_ms(ms)}",
                    2,
                )
            )
        words = f"{'+' if more > 0 else '−'}{format_ms(abs(more))}"
        at = max(scale(row.before_ms), scale(row.after_ms)) + 8
        parts.append(text(at, y + head + 17, fit_text(words, width - at), "value strong"))
    spoken = "; ".join(f"{r.label} {format_ms(r.before_ms)} to {format_ms(r.after_ms)}" for r in rows)
    return svg(width, 6 + pitch * len(rows), spoken, "".join(parts))
