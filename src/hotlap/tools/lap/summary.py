"""What the stages came to together: before and after, promised and measured, and the lap in one line.

A speed-up is taken from the bench at the end and from nowhere else.
"""

from __future__ import annotations

import dataclasses
import math

from hotlap.base.errors import EXIT_CHECK_FAILED, EXIT_INCONCLUSIVE, EXIT_OK
from hotlap.base.format import format_count, format_percent, format_ratio
from hotlap.measure.arms import parse_arm
from hotlap.records.lap import FAILED, SKIPPED, Lap, LapAdvice, LapRow
from hotlap.records.measurement import Arm, Comparison, Gate, Verdict
from hotlap.records.run import RunRecord
from hotlap.tools.lap.stages import Round, at_batch, tested_advice
from hotlap.tools.tune.verdict import OVERTAKEN

WRONG = "wrong answer"
OUT_OF_BUDGET = "left no time for"
"""Words of the search's notes on what it did not try."""


def table_rows(lap: Round) -> list[LapRow]:
    """A row for each arm of the bench; without one, the baseline alone, as its own stage measured it."""
    bench = lap.records.get("bench")
    if bench is None:
        return [_row(arm, "before", lap, lap.records["baseline"]) for arm in lap.records["baseline"].arms]
    after = _after_name(lap)
    advised = {piece["arm"] for piece in tested_advice(lap)}
    rows = []
    for arm in bench.arms:
        role = "before" if arm.role == "baseline" else "after" if arm.name == after else "advice"
        role = "batch" if role == "advice" and arm.name not in advised else role
        rows.append(_row(arm, role, lap, bench))
    return sorted(rows, key=lambda row: ("before", "batch", "after", "advice").index(row.role))


def _after_name(lap: Round) -> str:
    """How the winner is called in the bench; '' without one, or where it is the baseline."""
    return at_batch(*lap.winner, lap.batch) if lap.winner is not None and not lap.stays else ""


def _row(arm: Arm, role: str, lap: Round, bench: RunRecord) -> LapRow:
    wall, gate, head = arm.summary("wall"), _gate(bench, arm.name), _head(bench, arm.name)
    plain, batch = dataclasses.replace(parse_arm(arm.name), batch=0).name, int(arm.settings["batch"])
    peak, source = _peak(arm, plain, batch, lap)
    verdict = head.verdict if head else ("baseline" if role == "before" else "")
    if gate is not None and not gate.passed:
        verdict = WRONG
    elif arm.error:
        verdict = "failed"
    return LapRow(
        role=role,
        arm=plain,
        batch=batch,
        ms=wall.median if wall else None,
        ms_low=wall.low if wall else None,
        ms_high=wall.high if wall else None,
        samples_per_s=arm.samples_per_s,
        peak_bytes=peak,
        peak_from=source,
        error=_share(gate) if gate else None,
        right=gate.passed if gate else None,
        ratio=head.ratio if head else None,
        low=head.low if head else None,
        high=head.high if head else None,
        verdict=verdict,
        why=arm.error or (head.reason if head else ""),
    )


def _gate(bench: RunRecord, arm: str) -> Gate | None:
    return next((gate for gate in bench.gates if gate.arm == arm), None)


def _head(bench: RunRecord, arm: str) -> Comparison | None:
    found = (c for c in bench.comparisons if c.arm == arm and c.quantity == "wall" and c.reason != "context arm")
    return next(found, None)


def _share(gate: Gate) -> float | None:
    """The worst check's error over what is allowed; None for an error that is no number."""
    shares = [c.error / c.allowed if c.allowed else math.inf if c.error else 0.0 for c in gate.checks]
    worst = max(shares, default=0.0)
    return worst if math.isfinite(worst) else None


def _peak(arm: Arm, plain: str, batch: int, lap: Round) -> tuple[int | None, str]:
    """Peak memory by the bench; where that did not look, by the search's trials of the same arm and batch."""
    memory = arm.memory
    if memory is not None:
        return (memory.allocated_bytes if memory.allocated_bytes is not None else memory.host_rss_bytes), "bench"
    search = lap.records.get("tune")
    rows = search.extra["tune"].get("rows", []) if search else []
    peaks = [row["peak_bytes"] for row in rows if (row["arm"], row["batch"]) == (plain, batch) and row["peak_bytes"]]
    return (max(peaks), "search") if peaks else (None, "")


def advice_rows(lap: Round) -> list[LapAdvice]:
    """What the advice promised beside what the bench measured, for the pieces that were put to the test."""
    bench = lap.records.get("bench")
    if bench is None:
        return []
    rows = []
    for piece in tested_advice(lap):
        arm = next((arm for arm in bench.arms if arm.name == piece["arm"]), None)
        if arm is None:
            continue
        row = _row(arm, "advice", lap, bench)
        rows.append(
            LapAdvice(
                name=piece["name"], arm=arm.name, predicted=piece["gain"], measured=row.ratio, low=row.low,
                high=row.high, verdict=row.verdict, basis=piece["basis"],
                at_most=bool(piece.get("at_most")),
                score=row.ratio / piece["gain"] if row.ratio is not None and piece["gain"] else None,
            )
        )  # fmt: skip
    return rows


def give_verdict(found: Lap, lap: Round) -> Verdict:
    """The lap in one line. 0: faster and right; 1: nothing right, or not verified; 3: nothing faster, or not proven."""
    outcome, headline, code = _judge(found, lap)
    lines = [line for line in _stage_lines(found) if not headline.endswith(line.partition(": ")[2])]
    lines += _advice_lines(found) + _untested(lap) + _short_of_time(lap) + _disturbed(lap)
    verify = lap.records.get("verify")
    unsure = next((stage for stage in found.stages if stage.name == "verify" and stage.status == FAILED), None)
    if verify is not None and verify.verdict is not None and verify.verdict.exit_code != EXIT_OK:
        lines.insert(0, f"not verified: {verify.verdict.headline}")
    elif unsure is None:
        return Verdict(outcome=outcome, headline=headline, exit_code=code, lines=lines)
    return Verdict(outcome=outcome, headline=headline, exit_code=code or EXIT_CHECK_FAILED, lines=lines)


def _judge(found: Lap, lap: Round) -> tuple[str, str, int]:
    what = f"{found.target} {found.mode}"
    before = f"{found.baseline} at batch {found.batch}"
    if not found.tuned:
        search = lap.records.get("tune")
        verdict = search.verdict if search else None
        why = verdict.headline if verdict else "the search has no verdict"
        return "nothing right", why, verdict.exit_code if verdict else EXIT_CHECK_FAILED
    if lap.stays:
        text = f"{what}: the search found nothing faster than {before} that is right"
        if _left_out(lap) and _num_tried(lap) == 1:
            text = f"{what}: the search had time for nothing but {before}; repeat with a longer --budget"
        return "nothing faster", text, EXIT_INCONCLUSIVE
    after = next((row for row in found.table if row.role == "after"), None)
    name = f"{found.tuned} at batch {found.tuned_batch}"
    first = found.table[0]
    for row in (first, after):
        if row is not None and row.verdict == WRONG:
            return "gate failed", f"{what}: {row.arm} at batch {row.batch} gives a wrong answer", EXIT_CHECK_FAILED
    if "bench" not in lap.records:
        text = f"{what}: {name} is not shown to be faster than {before}: {_why_no_bench(found)}"
        return "nothing faster", text, EXIT_INCONCLUSIVE
    if after is None or after.ratio is None:
        bench = lap.records["bench"].verdict
        told = bench.headline if bench else "it was not timed"
        return "arm failed", f"{what}: {name} has no time in the bench: {told}", bench.exit_code if bench else 1
    figure = format_ratio(after.ratio, after.low, after.high)
    if after.verdict == "faster":
        right = f"error {format_percent(after.error)} of what is allowed"
        return "faster", f"{what}: {name} gives {figure} the samples a second of {before}; {right}", EXIT_OK
    if after.verdict == "slower":
        text = f"{what}: {name} was chosen by the search, but is slower than {before} in the bench: {figure}"
        return "nothing faster", text, EXIT_INCONCLUSIVE
    text = f"{what}: whether {name} is faster than {before} cannot be told: {figure}; {after.why}"
    return "inconclusive", text, EXIT_INCONCLUSIVE


def _why_no_bench(found: Lap) -> str:
    return next((stage.why for stage in found.stages if stage.name == "bench"), "it was not timed")


def _stage_lines(found: Lap) -> list[str]:
    words = {FAILED: "failed", SKIPPED: "was skipped"}
    return [f"{stage.name} {words[stage.status]}: {stage.why}" for stage in found.stages if stage.status in words]


def _short_of_time(lap: Round) -> list[str]:
    """What the search left out: a lap that found nothing may not have looked."""
    notes = _left_out(lap)
    if not notes:
        return []
    ways = format_count(_num_tried(lap), "configuration")
    return [f"the search had time for {ways} only; a longer --budget tries more ({notes[0].rstrip('.')})"]


def _left_out(lap: Round) -> list[str]:
    search = lap.records.get("tune")
    return [note for note in search.notes if OUT_OF_BUDGET in note] if search else []


def _num_tried(lap: Round) -> int:
    search = lap.records.get("tune")
    return len({(row["arm"], row["batch"]) for row in search.extra["tune"].get("rows", [])}) if search else 0


def _untested(lap: Round) -> list[str]:
    """Says that fewer pieces of advice were put to the test than were asked for."""
    asked, tested = lap.config.advice, len(tested_advice(lap))
    if tested >= asked:
        return []
    is_profiled = "profile-before" in lap.records
    why = "the profile names no more that an arm can check" if is_profiled else "there is no profile"
    return [f"advice put to the test: {tested} of {format_count(asked, 'piece')}; {why}"]


def _disturbed(lap: Round) -> list[str]:
    """What the search said of its own last run, where that contradicts its trials."""
    search = lap.records.get("tune")
    lines = search.verdict.lines if search and search.verdict else []
    return [f"the search's choice: {line}" for line in lines if OVERTAKEN in line]


def _advice_lines(found: Lap) -> list[str]:
    """Advice that beats the search's choice: a reader must know that there is something better."""
    after = next((row for row in found.table if row.role == "after"), None)
    best = after.high if after is not None and after.high is not None else 1.0
    return [
        f"advised, and faster than what the search chose: {piece.arm}, "
        f"{format_ratio(piece.measured, piece.low, piece.high)}"
        for piece in found.advice
        if piece.verdict == "faster" and piece.low is not None and piece.low > best
    ]
