"""A profile in sentences: what the step's time is made of, and what to try first."""

from __future__ import annotations

from collections.abc import Sequence

from hotlap.base.format import (
    format_bytes,
    format_gain,
    format_list,
    format_ms,
    format_percent,
    format_ratio,
)
from hotlap.tools.profile.diff import Diff
from hotlap.tools.profile.found import Advice, Analysis, RankFound, Roofline

SHOWN = 3


def headline(what: str, analysis: Analysis, step_ms: float) -> str:
    """The step in one sentence."""
    largest = [f"{part.name} {format_percent(part.share)}" for part in analysis.categories[:SHOWN]]
    return f"{what}: {format_ms(step_ms)} a step, {format_list(largest)}"


def story(
    analysis: Analysis, roofline: Roofline, advice: Sequence[Advice], ranks: Sequence[RankFound], *more: str
) -> list[str]:
    """What a reader should know, the most important first."""
    lines = []
    if analysis.on_device:
        idle = analysis.step_ms - analysis.busy_ms
        reasons = [f"{part.name} {format_ms(part.ms)}" for part in analysis.idle[:SHOWN] if part.share > 0.001]
        made = f": {format_list(reasons)}" if reasons else ""
        lines.append(f"The device is idle {format_percent(idle / analysis.step_ms)} of the traced step{made}.")
    if analysis.tensor_core_share is not None:
        lines.append(f"Tensor cores do {format_percent(analysis.tensor_core_share)} of the time in products.")
    far = [row for row in roofline.rows if row.distance is not None][:1]
    if far:
        row = far[0]
        lines.append(
            f"The longest operator, {row.name} on {row.shapes}, takes {format_ratio(row.distance)} its time at the "
            f"measured {row.bound} ceiling."
        )
    if analysis.syncs:
        first = analysis.syncs[0]
        lines.append(f"The host waits {format_ms(first.ms)} a step in {first.call}{_place(first.where, first.op)}.")
    if analysis.memory:
        peak = analysis.memory[0]
        owner = f", most of it by {peak.owners[0].what}" if peak.owners else ""
        lines.append(f"Memory peaks at {format_bytes(peak.peak_bytes)} on {peak.device}{owner}.")
    if len(ranks) > 1:
        slowest = min(ranks, key=lambda rank: rank.waits_ms)
        most = max(rank.waits_ms for rank in ranks)
        lines.append(f"Rank {slowest.rank} is the slowest of {len(ranks)}; others wait up to {format_ms(most)} for it.")
    lines += [text for text in more if text]
    lines += [f"{a.name}: {format_gain(a.gain, a.at_most)} of this step. {a.why}" for a in advice[:SHOWN]]
    return lines


def _place(where: str, op: str) -> str:
    return (f", from {where}" if where else "") + (f", for {op}" if op else "")


def diff_headline(diff: Diff) -> str:
    under = ", both under the profiler" if diff.traced else ""
    times = f"{format_ms(diff.before_ms)} before, {format_ms(diff.after_ms)} after{under}"
    return (
        f"{diff.after} takes {format_ratio(1 / diff.ratio if diff.ratio else None)} the time of {diff.before}: {times}"
    )


def diff_story(diff: Diff) -> list[str]:
    """The largest changes by category."""
    return [
        f"{change.name}: {format_ms(change.before_ms)} to {format_ms(change.after_ms)} "
        f"({'+' if change.change_ms > 0 else '-'}{format_ms(abs(change.change_ms))})"
        for change in diff.categories[:5]
        if abs(change.change_ms) > 0
    ]
