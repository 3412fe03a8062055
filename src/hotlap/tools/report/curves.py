"""Curves over the steps or the time of a training, one or several runs in one frame."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hotlap.base.format import format_number
from hotlap.tools.report.charts import EDGE, ROOMY
from hotlap.tools.report.svg import Scale, dots, fit_scale, is_wide, polyline, svg, text, text_px, x_axis, y_axis

MAX_POINTS = 400
"""Points of one curve; beyond it neighbours are averaged, which a screen could not tell apart anyway."""
LOG_FROM = 30.0
"""Positive values further apart than this many times are drawn on a log axis."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One quantity over steps or seconds."""

    label: str
    css: str
    points: Sequence[tuple[float, float]]
    marked: bool = False
    """Whether each point is a measurement to be seen, as an evaluation is."""
    stepped: bool = False
    """Whether a value holds until the next, as a setting does."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What runs along the bottom and what up the side."""

    x: str
    y: str
    zero: bool = False
    """Whether the side axis begins at 0."""


def thinned(points: Sequence[tuple[float, float]], most: int = MAX_POINTS) -> list[tuple[float, float]]:
    """At most ``most`` points, each the mean of neighbours; those that are not finite are left out."""
    known = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    size = -(-len(known) // most) if known else 1
    groups = [known[i : i + size] for i in range(0, len(known), size)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


def draw_curves(curves: Sequence[Curve], width: float, axis: Axis) -> str:
    """All curves in one frame with both axes named; log when the values are positive and far apart."""
    drawn = [(curve, list(curve.points) if curve.stepped else thinned(curve.points)) for curve in curves]
    values = [y for _, points in drawn for _, y in points]
    log = not axis.zero and all(v > 0 for v in values) and is_wide(values, LOG_FROM)
    top, bottom = 24.0, 24.0 + (210.0 if width >= ROOMY else 170.0)
    side = fit_scale(values, bottom, top, log=log, zero=axis.zero, pad=0.06)
    labels = [(v, tick_text(v)) for v in side.ticks(7)]
    left = max([text_px(label) for _, label in labels], default=20.0) + 12
    along = fit_scale([0.0, *(x for _, points in drawn for x, _ in points)], left + 4, width - EDGE, pad=0.0)
    count = 8 if width >= ROOMY else 4
    parts = [text(0, 12, axis.y + (" (log)" if log else ""), "axis"), y_axis(side, left, width - EDGE, labels)]
    parts.append(x_axis(along, top, bottom, [(v, tick_text(v)) for v in along.ticks(count)], axis.x))
    parts += [_curve(curve, points, along, side) for curve, points in drawn]
    told = "; ".join(f"{c.label} from {ends(points)}" for c, points in drawn if points)
    return svg(width, bottom + 40, f"{axis.y} over {axis.x}: {told}", "".join(parts))


def tick_text(value: float) -> str:
    """A round number without digits that say nothing."""
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e6 else f"{value:.4g}"


def ends(points: Sequence[tuple[float, float]]) -> str:
    return f"{format_number(points[0][1])} to {format_number(points[-1][1])}"


def _curve(curve: Curve, points: Sequence[tuple[float, float]], along: Scale, side: Scale) -> str:
    places = [(along(x), side(y)) for x, y in points]
    if curve.stepped:
        held = [(after[0], before[1]) for before, after in pairwise(places)]
        places = [place for pair in zip(places, [*held, places[-1]], strict=True) for place in pair] if places else []
    tip = f"{curve.label}: {ends(points)}" if points else curve.label
    marks = dots(places, f"{curve.css} big", tip) if curve.marked or len(places) == 1 else ""
    return polyline(places, curve.css) + marks
