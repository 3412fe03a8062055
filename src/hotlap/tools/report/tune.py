"""A search's record: the table of configurations, and throughput, latency and memory against the batch."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hotlap.base.format import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_ms,
    format_number,
    format_percent,
    format_s,
)
from hotlap.base.stats import MIN_SAMPLES_FOR
from hotlap.measure.arms import parse_arm
from hotlap.measure.trial import TOLD
from hotlap.records.run import RunRecord
from hotlap.tools.report.charts import EDGE
from hotlap.tools.report.svg import (
    Scale,
    byte_ticks,
    circle,
    fit_scale,
    line,
    polyline,
    svg,
    text,
    text_px,
    x_axis,
    y_axis,
)

SHOWN_ROWS = 14
"""Configurations in sight; the rest, slower ones, are folded."""
MAX_LINES = 4
KNEE_SHARE = 0.95
"""The knee is the smallest batch with this share of an arm's best rate: beyond it more batch gives little."""


@dataclass(frozen=True, kw_only=True)
class TuneRow:
    """One configuration, as the table shows it."""

    arm: str
    batch: str
    rate: str
    step: str
    tail: str
    peak: str
    error: str
    trials: str
    word: str
    tone: str
    why: str = ""


@dataclass(frozen=True)
class Point:
    """One batch of one arm."""

    batch: int
    rate: float
    step_ms: float
    p95_ms: float
    """Not a number where the steps timed were too few for it."""
    peak_bytes: float
    """Of full batches alone: a ragged end that is recorded beside them holds memory of its own."""


@dataclass(frozen=True)
class Curve:
    """One arm over the batches it was run at."""

    arm: str
    css: str
    points: list[Point]
    failed: list[int]
    """Batches at which it did not run."""

    @property
    def knee(self) -> int:
        best = max(point.rate for point in self.points)
        return min(point.batch for point in self.points if point.rate >= KNEE_SHARE * best)


def _found(record: RunRecord) -> dict[str, Any]:
    found = record.extra.get("tune")
    return found if isinstance(found, dict) else {}


def _groups(record: RunRecord) -> dict[tuple[str, int], list[dict[str, Any]]]:
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in _found(record).get("rows") or []:
        groups.setdefault((str(row["arm"]), int(row["batch"])), []).append(row)
    return groups


def _rates(record: RunRecord) -> dict[tuple[str, int], float]:
    """Samples a second as the search had them: of those that took turns, at the machine's one pace."""
    return {(str(one["arm"]), int(one["batch"])): one["samples_per_s"] for one in _found(record).get("rates") or []}


def _point(batch: int, rows: Sequence[dict[str, Any]], rate: float | None) -> Point | None:
    good = [row for row in rows if row.get("status") == "ok" and row.get("wall_ms")]
    if not good:
        return None
    if rate is None:  # records of earlier searches say each trial's time alone
        rate = statistics.median(1e3 * batch / statistics.median(row["wall_ms"]) for row in good)
    steps = sorted(ms for row in good for ms in row.get("interval_ms") or row["wall_ms"])
    full = [row for row in good if not row.get("tail")] or good
    peak = max((row["peak_bytes"] for row in full if row.get("peak_bytes")), default=math.nan)
    p95 = steps[math.ceil(0.95 * len(steps)) - 1] if len(steps) >= MIN_SAMPLES_FOR["p95"] else math.nan
    return Point(batch, rate, statistics.median(steps), p95, peak)


def curves(record: RunRecord) -> list[Curve]:
    """The winner's arm, and those that were run at two batches or more, the ones with the most first."""
    by_arm: dict[str, list[Point]] = {}
    failed: dict[str, list[int]] = {}
    rates = _rates(record)
    for (arm, batch), rows in _groups(record).items():
        point = _point(batch, rows, rates.get((arm, batch)))
        if point is None:
            failed.setdefault(arm, []).append(batch)
        else:
            by_arm.setdefault(arm, []).append(point)
    winner = (_found(record).get("winner") or {}).get("arm")
    many = [arm for arm, points in by_arm.items() if len(points) > 1 or arm == winner]
    ranked = sorted(many, key=lambda arm: (arm != winner, -len(by_arm[arm])))[:MAX_LINES]
    return [
        Curve(arm, f"a{1 + place}", sorted(by_arm[arm], key=lambda p: p.batch), sorted(failed.get(arm, [])))
        for place, arm in enumerate(ranked)
        if len(many) > 1 or len(by_arm[arm]) > 1
    ]


def tune_rows(record: RunRecord) -> list[TuneRow]:
    """Every configuration that was tried: the winner, the others by speed, then those that did not run."""
    gates = {str(gate["arm"]): gate for gate in _found(record).get("gates") or []}
    winner = _found(record).get("winner") or {}
    ran: list[tuple[float, TuneRow]] = []
    died: list[TuneRow] = []
    rates = _rates(record)
    for (arm, batch), rows in _groups(record).items():
        point = _point(batch, rows, rates.get((arm, batch)))
        trials = format_count(len(rows), "trial")
        if point is None:
            last = rows[-1]
            blank = dict.fromkeys(("rate", "step", "tail", "peak", "error"), UNKNOWN)
            word, why = str(last.get("status", "")), str(last.get("why", ""))
            died.append(TuneRow(arm=arm, batch=str(batch), **blank, trials=trials, word=word, tone="warn", why=why))
            continue
        chosen = (arm, batch) == (winner.get("arm"), winner.get("batch"))
        shown = _ran(arm, point, trials, _gate_of(arm, gates), chosen)
        final = [row for row in rows if row.get("tail")][-1:]
        for row in final:
            if row.get("status") != "ok":  # its shorter trials ran all the same
                shown = dataclasses.replace(shown, word="refused", tone="bad", why=str(row.get("why", "")))
        ran.append((math.inf if chosen else point.rate, shown))
    return [row for _, row in sorted(ran, key=lambda pair: -pair[0])] + died


def _ran(arm: str, point: Point, trials: str, gate: dict[str, Any] | None, chosen: bool) -> TuneRow:
    right = gate is not None and bool(gate.get("passed"))
    word = "chosen" if chosen else "right" if right else "wrong answer" if gate else "not judged"
    tone = "good" if right else "bad" if gate else "muted"
    return TuneRow(
        arm=arm,
        batch=str(point.batch),
        rate=format_number(point.rate),
        step=format_ms(point.step_ms),
        tail=format_ms(point.p95_ms),
        peak=format_bytes(point.peak_bytes),
        error=format_percent(gate.get("error")) if gate else UNKNOWN,
        trials=trials,
        word=word,
        tone=tone,
        why=str(gate.get("why") or "") if gate and not right else "",
    )


def _gate_of(arm: str, gates: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """The gate of an arm's numeric class."""
    return gates.get(parse_arm(arm).numeric_class)


def tune_refusals(record: RunRecord) -> list[str]:
    """What was refused, each with its reason."""
    return [f"{what}: {why}." for what, why in (_found(record).get("refused") or {}).items()]


def tune_facts(record: RunRecord) -> list[str]:
    """How the search went, in sentences."""
    found = _found(record)
    rows = found.get("rows") or []
    if not rows:
        return []
    in_turns = sum(bool(row.get("together")) for row in rows)
    how = f"{in_turns} of them in turns with others, the rest each" if in_turns else "each"
    lines = [
        f"Objective: {found.get('goal', '')}.",
        f"{format_count(len(rows), 'trial')}, {how} in a process of its own, took {format_s(found.get('spent_s'))} of "
        f"{format_s(found.get('budget_s'))}.",
    ]
    profile = found.get("profile")
    if profile:
        tail = f", with a ragged tail of {profile['tail_batch']} samples" if profile["tail_batch"] else ""
        lines.append(
            f"The winner was run once more in its final form{tail}; peak memory {format_bytes(profile['peak_bytes'])}."
        )
    lines += [f"Profile: {found['stored']}"] if found.get("stored") else []
    notes = {(row["arm"], note) for row in rows for note in row.get("notes") or [] if note.startswith(TOLD)}
    return lines + [f"{arm}: {note}." for arm, note in sorted(notes)]


def knee_curve(found: Sequence[Curve]) -> Curve:
    """The arm whose knee is marked: the one that was run at the most batches."""
    return max(found, key=lambda curve: len(curve.points))


def batch_curve(found: Sequence[Curve], width: float) -> str:
    """Throughput, latency and peak memory against the batch, one strip each; the knee is marked."""
    left, strip, right = 72.0, 150.0, width - EDGE
    batches = sorted({p.batch for c in found for p in c.points} | {b for c in found for b in c.failed})
    x_of = fit_scale([float(b) for b in batches], left + 10, right - 10, log=True, pad=0.0)
    panels = _panels(found)
    bottom = strip * len(panels)
    labels = [(float(b), str(b)) for b in _apart(batches, x_of)]
    parts = [x_axis(x_of, 22, bottom - 14, labels, "batch, log")]
    for place, (title, value, write, zero) in enumerate(panels):
        top = place * strip
        known = [value(p) for c in found for p in c.points if math.isfinite(value(p))]
        y_of = fit_scale(known, top + strip - 22, top + 30, log=not zero, zero=zero)
        parts.append(text(left, top + 15, title, "axis"))
        ticks = byte_ticks(y_of.high, 3) if write is format_bytes else y_of.ticks(3)
        parts.append(y_axis(y_of, left, right, [(v, write(v)) for v in ticks]))
        for curve in reversed(found):
            points = [(p, x_of(float(p.batch)), y_of(value(p))) for p in curve.points if math.isfinite(value(p))]
            parts.append(polyline([(x, y) for _, x, y in points], curve.css))
            parts += [circle(x, y, 4, f"spot {curve.css}", _tip(curve, p)) for p, x, y in points]
    parts.append(_failures(found, x_of, bottom))
    longest = knee_curve(found)
    parts.append(_knee(longest, x_of(float(longest.knee)), bottom, right))
    spoken = "; ".join(f"{c.arm} best {format_number(max(p.rate for p in c.points))} samples/s" for c in found)
    return svg(width, bottom + 30, f"Throughput, latency and memory against batch: {spoken}", "".join(parts))


def _panels(
    found: Sequence[Curve],
) -> list[tuple[str, Callable[[Point], float], Callable[[float], str], bool]]:
    """Title, value, how it is written, and whether its axis begins at zero."""
    tails = all(math.isfinite(p.p95_ms) for c in found for p in c.points)
    return [
        ("samples/s", lambda p: p.rate, format_number, True),
        ("95% of steps within, log", lambda p: p.p95_ms, format_ms, False)
        if tails
        else ("the median step, log", lambda p: p.step_ms, format_ms, False),
        ("peak memory", lambda p: p.peak_bytes, format_bytes, True),
    ]


def _apart(batches: Sequence[int], x_of: Scale) -> list[int]:
    """Those batches whose labels do not touch; the smaller of two neighbours is kept."""
    shown: list[int] = []
    for batch in batches:
        if not shown or x_of(float(batch)) - x_of(float(shown[-1])) > text_px(str(batch)) + 12:
            shown.append(batch)
    return shown


def _tip(curve: Curve, p: Point) -> str:
    return (
        f"{curve.arm}, batch {p.batch}: {format_number(p.rate)} samples/s, a step {format_ms(p.step_ms)}, 95% within "
        f"{format_ms(p.p95_ms)}, peak {format_bytes(p.peak_bytes)}"
    )


def _failures(found: Sequence[Curve], x_of: Callable[[float], float], bottom: float) -> str:
    """A cross at the foot for each batch that did not run."""
    parts = []
    for curve in found:
        for batch in curve.failed:
            x, y = x_of(float(batch)), bottom - 30
            parts.append(line(x - 5, y - 5, x + 5, y + 5, "whisker bad", f"{curve.arm}, batch {batch}: did not run"))
            parts.append(line(x - 5, y + 5, x + 5, y - 5, "whisker bad"))
    return "".join(parts)


def _knee(curve: Curve, x: float, bottom: float, right: float) -> str:
    words = f"knee at batch {curve.knee}"
    side = "end" if x + text_px(words) + 8 > right else "start"
    return line(x, 22, x, bottom - 14, "cross") + text(x + (-6 if side == "end" else 6), 27, words, "strong", side)
