"""Numbers as people read them: the unit fits the size, and what is not known is a dash."""

from __future__ import annotations

import math
from collections.abc import Sequence

UNKNOWN = "–"


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def format_number(value: float | None, digits: int = 3) -> str:
    """``value`` with about ``digits`` significant figures, never in powers of ten between 0.001 and a million."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e6 or size < 1e-3:
        return f"{value:.{max(digits - 1, 0)}e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    decimals = max(digits - 1 - math.floor(math.log10(size)), 0)
    return f"{value:,.{decimals}f}"


def linear_ticks(low: float, high: float, count: int) -> list[float]:
    """Multiples of 1, 2 or 5 within ``[low, high]``: about ``count``, and at least two."""
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((power * m for m in (1, 2, 5, 10) if power * m >= raw * 0.999), power * 10)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    if last <= first and count < 8:
        return linear_ticks(low, high, 2 * count)
    return [float(f"{k * step:.12g}") for k in range(first, min(last, first + 4 * count) + 1)]


def format_mean_count(value: float) -> str:
    """A count, or the mean of several: a whole one without a fraction."""
    return f"{value:,.0f}" if value == round(value) else format_number(value)


def _time_unit(size_ms: float) -> tuple[str, float]:
    """Unit and its length in ms, for a time of this size."""
    if size_ms >= 1000:
        return "s", 1000.0
    if size_ms >= 0.1 or size_ms == 0:
        return "ms", 1.0
    if size_ms >= 1e-4:
        return "µs", 1e-3
    return "ns", 1e-6


def format_target(name: str, summary: str) -> str:
    """A target and what it is, if it says so."""
    return f"{name}: {summary}" if summary else name


def format_ms(value: float | None, digits: int = 3) -> str:
    """A time given in milliseconds, in s, ms, µs or ns."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    unit, length = _time_unit(abs(value))
    return f"{format_number(value / length, digits)} {unit}"


def format_s(value: float | None, digits: int = 3) -> str:
    """A time given in seconds; minutes and hours from two minutes on."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if abs(value) < 120:
        return format_ms(value * 1000, digits)
    minutes, seconds = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes} min {seconds:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_ms_interval(median: float | None, low: float | None, high: float | None) -> str:
    """``12.3 ms [12.1, 12.6]``: a time and its interval, in the unit of the time.

    The figures go as deep as the interval needs to show its two ends apart.
    """
    if median is None or not math.isfinite(median):
        return UNKNOWN
    unit, length = _time_unit(abs(median))
    if low is None or high is None or not (_known(low) and _known(high)):
        return f"{format_number(median / length)} {unit}"
    digits = _digits_for(median, low, high)
    first, second, third = (format_number(value / length, digits) for value in (median, low, high))
    return f"{first} {unit} [{second}, {third}]"


def _digits_for(centre: float, low: float, high: float) -> int:
    """Significant figures, 3 to 5, that show an interval's ends apart."""
    width = abs(high - low)
    if width == 0 or centre == 0 or math.isinf(width):
        return 3
    return min(max(3, 1 + math.ceil(math.log10(abs(centre)) - math.log10(width))), 5)


def format_bytes(value: float | None) -> str:
    """A size in powers of 1024: B, KiB, MiB, GiB or TiB."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{format_number(size)} {unit}"
        size /= 1024
    return f"{format_number(size)} TiB"


def format_ratio(ratio: float | None, low: float | None = None, high: float | None = None) -> str:
    """``2.31x [2.25, 2.38]``: how many times, with its interval where there is one."""
    if ratio is None or not math.isfinite(ratio):
        return UNKNOWN
    if low is None or high is None or not (_known(low) and _known(high)):
        return f"{format_number(ratio)}x"
    digits = _digits_for(ratio, low, high)
    return f"{format_number(ratio, digits)}x [{format_number(low, digits)}, {format_number(high, digits)}]"


def format_gain(gain: float, at_most: bool = False) -> str:
    """``about 1.30x``, or ``at most about 1.30x`` for an estimate that is only a bound."""
    return f"{'at most ' if at_most else ''}about {format_number(gain)}x"


def format_rate(value: float | None, what: str = "samples") -> str:
    """``1,230 samples/s``."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{format_number(value)} {what}/s"


def format_percent(fraction: float | None) -> str:
    """A fraction as a percentage: one decimal below ten per cent, none above; beyond tenfold it is only that."""
    if fraction is None or not math.isfinite(fraction * 100):
        return UNKNOWN
    percent = fraction * 100
    if percent > 1000:
        return ">1,000%"
    if abs(percent) >= 1e6:
        return f"{format_number(percent)}%"
    return f"{percent:.1f}%" if abs(percent) < 9.95 else f"{percent:,.0f}%"


def format_error(value: float | None) -> str:
    """A numeric error in two figures; one that is not finite says so, for it is the worst there is."""
    if value is None or not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")


def format_count(number: int, singular: str, plural: str = "") -> str:
    """``1 process``, ``8 processes``."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def format_list(names: Sequence[str], last: str = "and") -> str:
    """``a, b and c``."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {last} {names[-1]}"
