"""SVG as strings: scales that never leave their range, readable ticks, and the few marks our charts are made of.

Colours are CSS classes, so that one drawing serves light, dark and paper. A mark's ``tip`` is its ``<title>``: a
browser shows it without scripts, and the page's script turns it into a tooltip for touch as well.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import escape

from hotlap.base.format import linear_ticks

CHAR_PX = 6.3
"""Mean width of a character of the chart's text, for labels that must fit before a browser has seen them."""
NAME_PX = 7.4
"""The same for names of arms, which stand in a fixed pitch."""
HIT_PX = 11.0
"""The usual height of an area to point at; the style gives it to every area that states none."""
TINY = 1e-100
"""Nearer to zero than this is zero, and beyond its inverse is nothing that was measured."""


@dataclass(frozen=True)
class Scale:
    """Values to pixels, linear or logarithmic; what lies outside the domain stands at its edge."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        if math.isnan(value):
            return self.start
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def ticks(self, count: int) -> list[float]:
        """About ``count`` round values within the domain."""
        return log_ticks(self.low, self.high, count) if self.log else linear_ticks(self.low, self.high, count)


def fit_scale(
    values: Iterable[float], start: float, end: float, *, log: bool = False, zero: bool = False, pad: float = 0.04
) -> Scale:
    """A scale that holds every finite value with some air; one value alone gets a domain around it."""
    drawable = (v if abs(v) > TINY else 0.0 for v in values if math.isfinite(v) and abs(v) < 1 / TINY)
    known = [v for v in drawable if v > 0 or not log]
    low, high = (min(known), max(known)) if known else (1.0, 2.0)
    if log:
        low, high = (low, high) if high / low > 1.0001 else (low / 1.5, high * 1.5)
        air = (high / low) ** pad
        return Scale(low / air, high * air, start, end, log=True)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        half = abs(high) * 0.05 or 1.0
        low, high = low - half, high + half
    air = (high - low) * pad
    return Scale(low if zero and low == 0 else low - air, high + air, start, end)


def is_wide(values: Iterable[float], factor: float) -> bool:
    """Whether positive values span more than ``factor``, so that a linear axis would crush the small ones."""
    known = [v for v in values if math.isfinite(v) and v > 0]
    return bool(known) and max(known) / min(known) > factor


def log_ticks(low: float, high: float, count: int) -> list[float]:
    """1, 2 and 5 of each decade, or whole decades, or every n-th of them; at least two where any fit."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    choices = [
        [m * 10.0**k for k in range(first, last + 1) for m in mantissas if low <= m * 10.0**k <= high]
        for mantissas in ((1, 2, 3, 5), (1, 2, 5), (1, 3), (1,))
    ]
    for found in choices:
        if 2 <= len(found) <= count:
            return found
    decades = choices[-1]
    if len(decades) > count:
        return decades[:: math.ceil(len(decades) / count)]
    return next((found for found in reversed(choices) if len(found) > 1), linear_ticks(low, high, count))


def byte_ticks(high: float, count: int) -> list[float]:
    """About ``count`` sizes from zero to ``high`` that are round in the unit they are written in, a power of 1024."""
    unit = 1024.0 ** min(4, max(0, int(math.log2(max(high, 1.0)) // 10)))
    return [value * unit for value in linear_ticks(0.0, high / unit, count)]


def n(value: float) -> str:
    """A coordinate with one decimal, and none where it is whole."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def _close(tag: str, tip: str) -> str:
    return f"><title>{escape(tip)}</title></{tag}>" if tip else "/>"


def text(x: float, y: float, content: str, css: str = "", anchor: str = "start") -> str:
    side = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{n(x)}" y="{n(y)}"{side}{_css(css)}>{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, css: str = "", tip: str = "") -> str:
    return f'<path d="M{n(x1)} {n(y1)}L{n(x2)} {n(y2)}"{_css(css)}{_close("path", tip)}'


def rect(x: float, y: float, width: float, height: float, css: str = "", tip: str = "", round_px: float = 0) -> str:
    corner = f' rx="{n(round_px)}"' if round_px else ""
    size = f'width="{n(max(width, 0))}" height="{n(max(height, 0))}"'
    return f'<rect x="{n(x)}" y="{n(y)}" {size}{corner}{_css(css)}{_close("rect", tip)}'


def circle(x: float, y: float, radius: float, css: str = "", tip: str = "") -> str:
    return f'<circle cx="{n(x)}" cy="{n(y)}" r="{n(radius)}"{_css(css)}{_close("circle", tip)}'


def dots(points: Iterable[tuple[float, float]], css: str, tip: str = "") -> str:
    """Many equal dots as one path of zero-length strokes: a tenth of the bytes of as many circles.

    Steps are relative, in whole tenths of a pixel, so that rounding does not add up along the path.
    """
    path = "".join(f"m{step}h0" for step in _steps(points))
    return f'<path d="{path}" class="dots {css}"{_close("path", tip)}' if path else ""


def _steps(points: Iterable[tuple[float, float]]) -> Iterator[str]:
    """The way from each point to the next, beginning at the origin."""
    x_now, y_now = 0, 0
    for x, y in points:
        x_next, y_next = round(x * 10), round(y * 10)
        yield f"{_tenths(x_next - x_now)} {_tenths(y_next - y_now)}".replace(" -", "-")
        x_now, y_now = x_next, y_next


def _tenths(count: int) -> str:
    """``count`` tenths of a pixel, as briefly as a path allows."""
    sign, whole, rest = "-" if count < 0 else "", abs(count) // 10, abs(count) % 10
    return sign + (str(whole) if whole or not rest else "") + (f".{rest}" if rest else "")


def polyline(points: Sequence[tuple[float, float]], css: str) -> str:
    if not points:
        return ""
    return f'<path d="m{"l".join(_steps(points))}" class="line {css}"/>'


def _css(css: str) -> str:
    return f' class="{css}"' if css else ""


def hit(x: float, y: float, width: float, height: float, tip: str) -> str:
    """An unseen area that shows ``tip``: a thick stroke, because that takes half the bytes of a rectangle."""
    stroke = "" if height == HIT_PX else f' stroke-width="{n(height)}"'
    return f'<path d="M{n(x)} {n(y + height / 2)}h{n(width)}" class="hit"{stroke}{_close("path", tip)}'


def fit_text(content: str, width_px: float, char_px: float = CHAR_PX) -> str:
    """``content``, or as much of its beginning and end as fits with an ellipsis between."""
    room = max(int(width_px / char_px), 4)
    if len(content) <= room:
        return content
    head = room // 2
    return content[:head] + "…" + content[len(content) - (room - 1 - head) :]


def text_px(content: str) -> float:
    """About how wide ``content`` is drawn."""
    return len(content) * CHAR_PX


def x_axis(scale: Scale, top: float, bottom: float, labels: Sequence[tuple[float, str]], title: str = "") -> str:
    """Hair lines down the plot with their values beneath; the title stands at the right end, under them."""
    parts = []
    for value, label in labels:
        x = scale(value)
        half = text_px(label) / 2
        anchor = "end" if x + half > scale.end + 14 else "start" if x - half < scale.start - 14 else "middle"
        parts.append(text(x, bottom + 16, label, "tick", anchor))
    lines = "".join(f"M{n(scale(value))} {n(top)}V{n(bottom)}" for value, _ in labels)
    parts.append(f'<path d="{lines}" class="grid"/>' if lines else "")
    if title:
        parts.append(text(scale.end, bottom + 33, title, "axis", "end"))
    return "".join(parts)


def y_axis(scale: Scale, left: float, right: float, labels: Sequence[tuple[float, str]]) -> str:
    """Hair lines across the plot with their values at the left."""
    lines = "".join(f"M{n(left)} {n(scale(value))}H{n(right)}" for value, _ in labels)
    names = "".join(text(left - 7, scale(value) + 4, label, "tick", "end") for value, label in labels)
    return (f'<path d="{lines}" class="grid"/>' if lines else "") + names


def jpeg(width: float, height: float, content: bytes) -> str:
    """A JPEG file, drawn over the whole of these sides."""
    data = base64.b64encode(content).decode()
    return f'<image width="{n(width)}" height="{n(height)}" href="data:image/jpeg;base64,{data}"/>'


def svg(width: float, height: float, label: str, body: str) -> str:
    """A drawing that scales to its column and says in ``label`` what it shows."""
    box = f'viewBox="0 0 {n(width)} {n(height)}" width="{n(width)}" height="{n(height)}"'
    return f'<svg {box} role="img" aria-label="{escape(label)}">{body}</svg>'
