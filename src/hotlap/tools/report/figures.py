"""The figures of one run: which charts a record has matter for, each drawn for a desk and for a phone."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from markupsafe import Markup

from hotlap.base.format import format_number
from hotlap.records.measurement import Telemetry
from hotlap.records.run import RunRecord
from hotlap.tools.report.charts import BarRow, ClockRow, bars, clocks, forest
from hotlap.tools.report.doctor import ceiling_groups
from hotlap.tools.report.loader import consumption_lines, rate_rows, rates
from hotlap.tools.report.series import Moment, Panel, Strip, break_even, panels, sequence, spreads, strips
from hotlap.tools.report.speed import colours, forest_rows
from hotlap.tools.report.svg import is_wide
from hotlap.tools.report.tune import batch_curve, curves, knee_curve

TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)
DESK_PX = 800.0
PHONE_PX = 340.0
LOG_FROM = 8.0
"""Arms further apart than this many times share a log axis."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One chart in two widths, with what it shows and how to read it."""

    title: str
    caption: str
    desk: Markup
    phone: Markup
    legend: list[tuple[str, str]] = field(default_factory=list)
    """CSS class and name of each colour, where the chart does not name them itself."""


def figure(
    title: str,
    draw: Callable[[float], str],
    caption: str = "",
    *,
    legend: list[tuple[str, str]] | None = None,
) -> Figure:
    """``draw`` at both widths; the page's style shows the one that fits."""
    desk = draw(DESK_PX)
    phone = _refer(draw(PHONE_PX), desk)
    # The charts escape what they are given.
    return Figure(title=title, caption=caption, desk=Markup(desk), phone=Markup(phone), legend=legend or [])


def _refer(phone: str, desk: str) -> str:
    """``phone`` with each tip that ``desk`` holds too as its number there: no browser shows titles on touch anyway.

    The page's script puts the words back.
    """
    numbers = {tip: place for place, tip in reversed(list(enumerate(TITLE.findall(desk))))}
    return TITLE.sub(lambda m: f"<desc>{numbers[m[1]]}</desc>" if m[1] in numbers else m[0], phone)


def forest_figure(record: RunRecord) -> Figure | None:
    """The speed-ups that may be shown; nothing when none may, for an axis alone would look like one."""
    rows = forest_rows(record)
    if all(row.ratio is None for row in rows):
        return None
    caption = (
        "Point: speed-up over the baseline by wall time. Bar: 95% interval. "
        "An interval that holds 1x leaves the question open."
    )
    return figure("Speed-up", lambda width: forest(rows, width), caption)


def wall_strips(record: RunRecord) -> list[Strip]:
    """The wall samples of each arm that has any."""
    css, found = colours(record), []
    for arm in record.arms:
        series = [m for m in record.measurements if m.arm == arm.name and m.quantity == "wall" and m.values]
        if not series:
            continue
        processes: dict[int, list[float]] = {}
        for m in series:
            processes.setdefault(m.process, []).extend(m.values)
        summary = arm.summary("wall")
        held = {m.process for m in series if "throttled" in m.flags}
        held |= {t.process for t in record.telemetry if t.arm == arm.name and t.throttle}
        found.append(
            Strip(
                label=arm.name + (f" ({arm.role})" if arm.role != "arm" else ""),
                css=css[arm.name],
                processes=processes,
                median=summary.median if summary else None,
                low=summary.low if summary else None,
                high=summary.high if summary else None,
                throttled=frozenset(held),
            )
        )
    return found


def distribution_figures(record: RunRecord) -> list[Figure]:
    """Samples by process on a shared axis, their spread around each arm's own median, and the two clocks."""
    arms, found = wall_strips(record), []
    if arms:
        log = is_wide([v for arm in arms for samples in arm.processes.values() for v in samples], LOG_FROM)
        caption = (
            "A lane for each process, dots for its blocks of iterations (evenly chosen where there are many); the dark "
            "tick is the process's median, the shaded band the 95% interval of the arm's median. Rings are samples "
            "more than 3 interquartile ranges outside their process's quartiles: marked, never removed. An orange tick "
            "is a process in which the device throttled."
        )
        found.append(figure("Samples by process", lambda width: strips(arms, width, log=log), caption))
        caption = (
            "The same lanes as distance from the arm's median. Tick: median of a process; bar: its middle half; hair "
            "line: 5th to 95th percentile. Lanes that stand apart mean that processes differ, not iterations: more "
            "processes help then, more iterations do not."
        )
        found.append(figure("Spread between processes", lambda width: spreads(arms, width), caption))
    pair = clock_figure(record)
    return [*found, pair] if pair else found


def clock_figure(record: RunRecord) -> Figure | None:
    """Wall time against device time for each arm that has both."""
    css, rows = colours(record), []
    for arm in record.arms:
        wall, device = arm.summary("wall"), arm.summary("device")
        if wall and device and wall.median > 0 and math.isfinite(device.median):
            rows.append(ClockRow(label=arm.name, css=css[arm.name], wall=wall.median, device=device.median))
    if not rows:
        return None
    caption = (
        "Upper bar: wall time per iteration. Lower bar: what the device needs when its queue is kept full. The gap is "
        "the launch-bound share: time the device waits to be given work. Each arm has its own scale."
    )
    return figure("Two clocks", lambda width: clocks(rows, width), caption)


def timeline_figures(record: RunRecord) -> list[Figure]:
    """Samples in the order of the run, and what the device did meanwhile."""
    arms, found = wall_strips(record), []
    if arms:
        caption = (
            "Blocks of iterations in their order, each arm on its own axis. A slope is a drift, a step a change of "
            "state."
        )
        found.append(figure("Wall time over the run", lambda width: sequence(arms, width), caption))
    rows = telemetry_panels(record.telemetry)
    if rows:
        ordered = sorted(record.telemetry, key=lambda t: t.seconds)
        moments = [Moment(seconds=t.seconds, tip=telemetry_tip(t), throttled=bool(t.throttle)) for t in ordered]
        caption = "One reading for each timed block."
        title = "Clocks and heat" if any(row.unit == "°C" for row in rows) else "Clocks and load"
        if any(m.throttled for m in moments):
            caption += " Shaded: the device reported a reason for holding its clocks back."
        found.append(figure(title, lambda width: panels(rows, moments, width), caption))
    return found


def telemetry_panels(telemetry: list[Telemetry]) -> list[Panel]:
    """The quantities that were read: the card's where there is one, the CPU's otherwise."""
    ordered = sorted(telemetry, key=lambda t: t.seconds)
    card = [("SM clock", "MHz", "sm_clock_mhz", "a1"), ("Temperature", "°C", "temperature_c", "a2"),
            ("Power", "W", "power_w", "a3")]  # fmt: skip
    host = [("CPU clock", "MHz", "cpu_clock_mhz", "a1"), ("Load average", "processes", "load_average", "a2")]
    for quantities in (card, host):
        found = []
        for label, unit, attribute, css in quantities:
            points = [(t.seconds, value) for t in ordered if (value := getattr(t, attribute)) is not None]
            if points:
                found.append(Panel(label=label, unit=unit, points=points, css=css))
        if found:
            return found
    return []


def telemetry_tip(t: Telemetry) -> str:
    """One block in words."""
    parts = [f"{format_number(t.seconds)} s: {t.arm}, process {t.process + 1}, block {t.block + 1}"]
    readings = ((t.sm_clock_mhz, "MHz"), (t.temperature_c, "°C"), (t.power_w, "W"), (t.cpu_clock_mhz, "MHz CPU"),
                (t.load_average, "load"))  # fmt: skip
    parts += [
        f"{value:,.4g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"
        for value, unit in readings
        if value is not None
    ]
    if t.throttle:
        parts.append("throttled: " + ", ".join(t.throttle))
    if t.other_processes:
        parts.append(f"{len(t.other_processes)} other on the device")
    return ", ".join(parts)


def memory_figure(record: RunRecord) -> Figure | None:
    """Peak memory by arm, in each way it was measured."""
    css, rows = colours(record), []
    for arm in record.arms:
        if arm.memory is None:
            continue
        m, colour = arm.memory, css[arm.name]
        measures = (("allocated", m.allocated_bytes, "solid"), ("reserved", m.reserved_bytes, "medium"),
                    ("device used", m.device_used_bytes, "soft"))  # fmt: skip
        named = [(name, float(size), f"{colour} {shade}") for name, size, shade in measures if size is not None]
        if not named and m.host_rss_bytes is not None:
            named = [("host, resident", float(m.host_rss_bytes), f"{colour} solid")]
        if named:
            rows.append(BarRow(label=arm.name, bars=named))
    if not rows:
        return None
    caption = (
        "Allocated: live tensors at their peak. Reserved: what the allocator holds for them. Device used: growth of "
        "the whole device's used memory, with context, workspaces and graphs. CPU arms: resident memory of the process."
    )
    return figure("Peak memory", lambda width: bars(rows, width, what="Peak memory"), caption)


def break_even_figure(record: RunRecord) -> Figure | None:
    """Time per sample against batch, when the run looked for the batch at which the device pays."""
    found = record.extra.get("break_even")
    if not isinstance(found, dict) or not found.get("batches") or not found.get("times_ms"):
        return None
    batches = [int(b) for b in found["batches"]]
    css = colours(record)
    lines = []
    for place, (name, times) in enumerate(found["times_ms"].items()):
        series = [math.nan if t is None else float(t) for t in times]
        lines.append((str(name), css.get(name, f"a{1 + place}"), series))
    cross = found.get("batch")
    cross = int(cross) if isinstance(cross, (int, float)) else None
    return figure(
        "Break-even batch",
        lambda width: break_even(batches, lines, cross, width),
        str(found.get("text") or "") or "Time per sample; the lower line wins at that batch.",
        legend=[(colour, name) for name, colour, _ in lines],
    )


def loader_figure(record: RunRecord) -> Figure | None:
    """The rate of each loader setting, when the run looked for the right one."""
    rows, marks = rate_rows(record), consumption_lines(record)
    if not rows:
        return None
    caption = (
        "Bar: samples a second that a setting delivered, with its 95% interval, and times the model's consumption. "
        "Solid line: what the model consumes. Dashed line: what is asked of workers, so that uneven stretches do not "
        "starve it. Without workers a step waits while its batch is loaded, so ten times the consumption is asked for."
    )
    return figure("What each setting delivers", lambda width: rates(rows, marks, width), caption)


def batch_figure(record: RunRecord) -> Figure | None:
    """Throughput, latency and memory against the batch, when the run searched for it."""
    found = curves(record)
    if not found:
        return None
    caption = (
        "Each point is a batch that was run, in whole steps on the worst-case shape. The dashed line marks the knee of "
        f"{knee_curve(found).arm}: the smallest batch with 95% of its best rate. A rate that does not rise with the "
        "batch means that batching does not pay here. A cross at the foot is a batch that did not run."
    )
    legend = [(curve.css, curve.arm) for curve in found]
    return figure("The batch", lambda width: batch_curve(found, width), caption, legend=legend)


def ceiling_figures(record: RunRecord) -> list[Figure]:
    """The machine's measured ceilings, a chart for each unit."""
    return [
        figure(
            f"Measured ceilings, {unit}" if unit else "Measured ceilings",
            partial(bars, rows, what=f"Ceilings {unit}", form="number"),
        )
        for unit, rows in ceiling_groups(record.extra.get("ceilings"))
    ]
