"""Charts of many samples: distributions by process, samples in order, clocks over time, time against batch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hotlap.base.format import format_count, format_ms, format_number
from hotlap.tools.report.charts import EDGE, ROOMY, row_label
from hotlap.tools.report.svg import (
    Scale,
    circle,
    dots,
    fit_scale,
    hit,
    is_wide,
    line,
    polyline,
    rect,
    svg,
    text,
    text_px,
    x_axis,
    y_axis,
)

MAX_DOTS = 1280
"""Dots drawn in one chart at desk width; beyond it every n-th of the sorted samples stands for its neighbours."""
MAX_DOTS_PHONE = 560
FAR_OUT = 3.0
"""Interquartile ranges from a process's quartiles at which a sample is ringed."""


@dataclass(frozen=True, kw_only=True)
class Strip:
    """The samples of one arm by process, and its summary where it has one."""

    label: str
    css: str
    processes: Mapping[int, Sequence[float]]
    median: float | None = None
    low: float | None = None
    high: float | None = None
    throttled: frozenset[int] = frozenset()
    """Processes in which the device slowed itself."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One quantity over time."""

    label: str
    unit: str
    points: Sequence[tuple[float, float]]
    css: str


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One block of a run: when, what a reader wants to know of it, and whether the device was held back."""

    seconds: float
    tip: str
    throttled: bool = False


def most_dots(width: float) -> int:
    return MAX_DOTS if width >= ROOMY else MAX_DOTS_PHONE


def finite(values: Sequence[float]) -> list[float]:
    return [v for v in values if math.isfinite(v)]


def ms_ticks(scale: Scale, count: int) -> list[tuple[float, str]]:
    """Round times without digits that say nothing: in one unit on a linear axis, each in its own on a log one."""
    unit, length = _unit(scale.high)
    rescaled = Scale(scale.low / length, scale.high / length, scale.start, scale.end, scale.log)
    found = []
    for tick in rescaled.ticks(count):
        own, size = _unit(tick * length * 1.0001) if scale.log else (unit, length)
        found.append((tick * length, f"{tick * length / size:.6g} {own}"))
    return found


def _unit(high_ms: float) -> tuple[str, float]:
    """The unit of an axis that reaches ``high_ms``, and its length in ms."""
    return ("s", 1000.0) if high_ms >= 1000 else ("ms", 1.0) if high_ms >= 0.1 else ("µs", 1e-3)


def far_out(values: Sequence[float]) -> tuple[float, float]:
    """The bounds beyond which a sample of this process is ringed; both infinite for fewer than four samples."""
    if len(values) < 4:
        return -math.inf, math.inf
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    reach = FAR_OUT * (third - first)
    return first - reach, third + reach


def thin(values: Sequence[float], most: int) -> list[float]:
    """``values`` sorted, or evenly chosen ranks of them with both ends kept, when there are more than ``most``."""
    ranked = sorted(values)
    if len(ranked) <= most:
        return ranked
    most = max(most, 2)
    return [ranked[round(k * (len(ranked) - 1) / (most - 1))] for k in range(most)]


def strips(arms: Sequence[Strip], width: float, *, log: bool) -> str:
    """A lane of dots for each process of each arm on one time axis; process medians are ticks, far samples rings."""
    values = [v for arm in arms for samples in arm.processes.values() for v in finite(samples)]
    left = 30.0
    scale = fit_scale(values, left + EDGE, width - EDGE, log=log)
    lanes = sum(len(arm.processes) for arm in arms)
    lane = 11.0 if lanes <= 40 else max(4.0, 440.0 / lanes)
    per_lane = max(most_dots(width) // max(lanes, 1), 12)
    body, y = [], 0.0
    for arm in arms:
        body.append(row_label(arm.label, 0.0, y + 2, width, 0.0))
        body.append(_strip(arm, scale, y + 22, lane, per_lane))
        y += 22 + lane * len(arm.processes) + 14
    axis = x_axis(scale, 18, y - 6, ms_ticks(scale, 7 if width >= ROOMY else 4),
                  "wall time per iteration" + (", log" if log else ""))  # fmt: skip
    label = "Samples by process: " + "; ".join(
        f"{a.label} median {format_ms(a.median)}, {format_count(len(a.processes), 'process', 'processes')}"
        for a in arms
    )
    return svg(width, y + 32, label, axis + "".join(body))


def _strip(arm: Strip, scale: Scale, top: float, lane: float, per_lane: int) -> str:
    height = lane * len(arm.processes)
    parts = []
    if arm.median is not None and math.isfinite(arm.median):
        low, high = (arm.median if v is None or not math.isfinite(v) else v for v in (arm.low, arm.high))
        tip = (
            f"{arm.label}: median {format_ms(arm.median, 4)}, 95% interval {format_ms(low, 4)} to {format_ms(high, 4)}"
        )
        parts.append(rect(scale(low), top - 3, max(scale(high) - scale(low), 1.5), height + 6, f"{arm.css} band", tip))
        parts.append(line(scale(arm.median), top - 3, scale(arm.median), top + height + 3, f"{arm.css} centre"))
    for place, (process, samples) in enumerate(sorted(arm.processes.items())):
        y = top + lane * (place + 0.5)
        if lane >= 8 or place % 5 == 0:
            parts.append(text(24, y + 3.5, str(process + 1), "lane", "end"))
        parts.append(_lane(arm, process, finite(samples), scale, y, lane, per_lane))
    return "".join(parts)


def _lane(arm: Strip, process: int, samples: Sequence[float], scale: Scale, y: float, lane: float, most: int) -> str:
    if not samples:
        return ""
    low, high = far_out(samples)
    middle = statistics.median(samples)
    near = thin([v for v in samples if low <= v <= high], most)
    far = thin([v for v in samples if not low <= v <= high], 12)
    held = " (device throttled)" if process in arm.throttled else ""
    tip = (
        f"{arm.label}, process {process + 1}{held}: median {format_ms(middle, 4)}, {format_ms(min(samples), 4)} to "
        f"{format_ms(max(samples), 4)}, {format_count(len(samples), 'sample')}"
    )
    # Two dots' heights of jitter, in a fixed pattern, so that equal samples do not hide one another.
    spread = min(lane * 0.22, 2.4)
    points = [(scale(v), y + spread * (-1, 1, 0)[k % 3]) for k, v in enumerate(near)]
    rings = "".join(circle(scale(v), y, 2.4, f"ring {arm.css}", f"far out: {format_ms(v, 4)}") for v in far)
    tick = line(scale(middle), y - lane * 0.42, scale(middle), y + lane * 0.42, f"median{' held' if held else ''}")
    target = hit(scale.start, y - lane / 2, scale.end - scale.start, lane, tip)
    return dots(points, arm.css) + tick + target + rings


def spreads(arms: Sequence[Strip], width: float) -> str:
    """For each process its median, middle half and 5th to 95th percentile, in per cent of the arm's own median."""
    rows = [(arm, _relative_quantiles(arm)) for arm in arms]
    bounds = [v for _, processes in rows for five in processes.values() for v in five]
    scale = fit_scale([*bounds, 0.0], 30.0 + EDGE, width - EDGE)
    lanes = sum(len(arm.processes) for arm in arms)
    lane = 11.0 if lanes <= 40 else max(4.0, 440.0 / lanes)
    body, y = [], 0.0
    for arm, processes in rows:
        body.append(row_label(arm.label, 0.0, y + 2, width, 0.0))
        top = y + 22
        for place, (process, five) in enumerate(processes.items()):
            centre = top + lane * (place + 0.5)
            if lane >= 8 or place % 5 == 0:
                body.append(text(24, centre + 3.5, str(process + 1), "lane", "end"))
            body.append(_spread(arm, process, five, scale, centre, lane))
        y = top + lane * len(processes) + 14
    ticks = [(v, f"{v:+g}%" if v else "0") for v in scale.ticks(7 if width >= ROOMY else 4)]
    axis = x_axis(scale, 18, y - 6, ticks, "from the arm's median") + line(scale(0), 18, scale(0), y - 6, "one")
    return svg(width, y + 32, "Spread of processes around each arm's median", axis + "".join(body))


def _relative_quantiles(arm: Strip) -> dict[int, tuple[float, float, float, float, float]]:
    """The 5, 25, 50, 75 and 95% points of each process, in per cent from the arm's median."""
    kept = {process: sorted(finite(values)) for process, values in sorted(arm.processes.items())}
    kept = {process: values for process, values in kept.items() if values}
    middle = arm.median if arm.median is not None and math.isfinite(arm.median) else None
    if middle is None:
        middle = statistics.median([v for values in kept.values() for v in values] or [1.0])
    unit = middle or 1.0
    return {
        process: tuple(
            100 * (values[round(q * (len(values) - 1))] - middle) / unit for q in (0.05, 0.25, 0.5, 0.75, 0.95)
        )  # type: ignore[misc]
        for process, values in kept.items()
    }


def _spread(arm: Strip, process: int, five: Sequence[float], scale: Scale, y: float, lane: float) -> str:
    p5, p25, p50, p75, p95 = five
    held = " held" if process in arm.throttled else ""
    tip = f"{arm.label}, process {process + 1}: median {p50:+.1f}%, 5th to 95th percentile {p5:+.1f}% to {p95:+.1f}%"
    return (
        line(scale(p5), y, scale(p95), y, f"{arm.css} hair")
        + line(scale(p25), y, max(scale(p75), scale(p25) + 1), y, f"{arm.css} box")
        + line(scale(p50), y - lane * 0.42, scale(p50), y + lane * 0.42, f"median{held}")
        + hit(scale.start, y - lane / 2, scale.end - scale.start, lane, tip)
    )


def sequence(arms: Sequence[Strip], width: float) -> str:
    """Wall samples in the order of their processes, a row for each arm on its own axis: drifts and steps are seen."""
    left, row, right = 62.0, 92.0, width - EDGE
    order = sorted({process for arm in arms for process in arm.processes})
    x_of = Scale(0.0, float(max(len(order), 1)), left, right)
    bottom = row * len(arms)
    most = max(most_dots(width) // 2 // max(sum(len(a.processes) for a in arms), 1), 8)
    parts = []
    for index, arm in enumerate(arms):
        top = index * row
        values = [v for samples in arm.processes.values() for v in finite(samples)]
        y_of = fit_scale(values, top + row - 20, top + 26, log=is_wide(values, 8))
        parts.append(row_label(arm.label, 0.0, top, width, 0.0))
        parts.append(y_axis(y_of, left, right, few(ms_ticks(y_of, 2))))
        points = [p for i, s in arm.processes.items() for p in _in_order(s, order.index(i), x_of, y_of, most)]
        parts.append(dots(points, arm.css, arm.label))
    every = max(1, math.ceil(len(order) / (16 if width >= ROOMY else 8)))
    for place, process in enumerate(order):
        if place:
            parts.append(line(x_of(place), 18, x_of(place), bottom - 12, "grid"))
        if place % every == 0:
            parts.append(text((x_of(place) + x_of(place + 1)) / 2, bottom + 4, str(process + 1), "tick", "middle"))
    parts.append(text(right, bottom + 22, "process, in the order they ran", "axis", "end"))
    return svg(width, bottom + 30, "Wall time of every iteration in the order of the run", "".join(parts))


def few(ticks: Sequence[tuple[float, str]]) -> Sequence[tuple[float, str]]:
    """The outermost ticks of a low strip, where more would touch."""
    return ticks if len(ticks) < 3 else [ticks[0], ticks[-1]]


def _in_order(samples: Sequence[float], place: int, x_of: Scale, y_of: Scale, most: int) -> list[tuple[float, float]]:
    every = max(1, math.ceil(len(samples) / most))
    return [
        (x_of(place + 0.06 + 0.88 * (k + 0.5) / len(samples)), y_of(v))
        for k, v in enumerate(samples)
        if k % every == 0 and math.isfinite(v)
    ]


def panels(rows: Sequence[Panel], moments: Sequence[Moment], width: float) -> str:
    """Clocks, temperature, power or load over the run's seconds, one strip each; throttled blocks are shaded."""
    left, strip, right = 62.0, 74.0, width - EDGE
    x_of = fit_scale([m.seconds for m in moments], left, right, pad=0.01)
    bottom = strip * len(rows)
    parts = [_shade(moments, x_of, bottom)]
    for index, row in enumerate(rows):
        top = index * strip
        y_of = fit_scale([v for _, v in row.points], top + strip - 12, top + 26, pad=0.1)
        parts.append(text(left, top + 13, f"{row.label}, {row.unit}", "axis"))
        parts.append(y_axis(y_of, left, right, few([(v, f"{v:,g}") for v in y_of.ticks(2)])))
        points = [(x_of(x), y_of(y)) for x, y in row.points if math.isfinite(y)]
        parts.append(polyline(points, row.css) + (dots(points, row.css) if len(points) <= 40 else ""))
    ticks = [(v, f"{v:g} s") for v in x_of.ticks(8 if width >= ROOMY else 4)]
    parts.append(x_axis(x_of, bottom - 8, bottom - 4, ticks, "since the run began"))
    parts.append(_targets(moments, x_of, bottom, 48 if width >= ROOMY else 20))
    names = ", ".join(row.label for row in rows)
    return svg(width, bottom + 36, f"{names} over {format_number(x_of.high - x_of.low)} s", "".join(parts))


def _edges(moments: Sequence[Moment], x_of: Scale) -> list[tuple[float, float]]:
    """Where each block's ground begins and ends: half way to its neighbours."""
    xs = [x_of(m.seconds) for m in moments]
    middles = [(a + b) / 2 for a, b in pairwise(xs)]
    return list(zip([x_of.start, *middles], [*middles, x_of.end], strict=True)) if xs else []


def _shade(moments: Sequence[Moment], x_of: Scale, bottom: float) -> str:
    edges = _edges(moments, x_of)
    return "".join(
        rect(a, 0, max(b - a, 1.0), bottom - 8, "throttled")
        for (a, b), m in zip(edges, moments, strict=True)
        if m.throttled
    )


def _targets(moments: Sequence[Moment], x_of: Scale, bottom: float, most: int) -> str:
    """Places to point at: one for each block, or for every few where there are more than ``most``."""
    every = max(1, math.ceil(len(moments) / most))
    chosen = [m for k, m in enumerate(moments) if k % every == 0]
    edges = _edges(chosen, x_of)
    return "".join(hit(a, 0, b - a, bottom, m.tip) for (a, b), m in zip(edges, chosen, strict=True))


def break_even(
    batches: Sequence[int], lines: Sequence[tuple[str, str, Sequence[float]]], cross: int | None, width: float
) -> str:
    """Time per sample against batch, both log, one line for each (label, css, ms per batch); the crossover marked."""
    left, height, right = 62.0, 230.0, width - EDGE
    per_sample = [[t / b for t, b in zip(times, batches, strict=False) if b > 0] for _, _, times in lines]
    y_of = fit_scale([v for row in per_sample for v in row], height - 6, 24, log=True)
    x_of = fit_scale([float(b) for b in batches], left + 8, right - 8, log=True, pad=0.0)
    parts = [y_axis(y_of, left, right, ms_ticks(y_of, 5)), _batch_axis(batches, x_of, height)]
    if cross is not None and cross > 0:
        x = x_of(float(cross))
        words = f"break-even at batch {cross}"
        side = "end" if x + text_px(words) + 8 > right else "start"
        parts.append(line(x, 8, x, height, "cross"))
        parts.append(text(x + (-6 if side == "end" else 6), 14, words, "strong", side))
    for (label, css, _), row in zip(lines, per_sample, strict=True):
        known = [(b, v) for b, v in zip(batches, row, strict=False) if math.isfinite(v)]
        parts.append(polyline([(x_of(float(b)), y_of(v)) for b, v in known], css))
        parts += [
            circle(x_of(float(b)), y_of(v), 4, f"spot {css}", f"{label}, batch {b}: {format_ms(v)} per sample")
            for b, v in known
        ]
    return svg(width, height + 40, "Time per sample against batch", "".join(parts))


def _batch_axis(batches: Sequence[int], x_of: Scale, height: float) -> str:
    every = max(1, math.ceil(len(batches) * 34 / max(x_of.end - x_of.start, 1)))
    shown = [b for k, b in enumerate(batches) if k % every == 0]
    return x_axis(x_of, 20, height, [(float(b), str(b)) for b in shown], "batch, log")
