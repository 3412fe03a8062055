"""A search in one line and a few more: what won, beside what, with which error; or why nothing did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hotlap.base.errors import EXIT_CHECK_FAILED, EXIT_OK, EXIT_OUT_OF_MEMORY
from hotlap.base.format import format_bytes, format_count, format_ms, format_percent, format_rate, format_s
from hotlap.measure.trial import TOLD
from hotlap.records.measurement import Verdict
from hotlap.tools.tune.budget import spent
from hotlap.tools.tune.config import TuneConfig
from hotlap.tools.tune.contest import CLOSE, fell
from hotlap.tools.tune.goal import MEMORY_SHARE, Goal
from hotlap.tools.tune.protocol import numeric_class
from hotlap.tools.tune.rows import (
    MEMORY_DEATHS,
    Config,
    Estimate,
    GateRow,
    Outcome,
    Row,
    died_at_last,
    estimate,
    estimates,
)

OVERTAKEN = "its last run, in a fresh process, was slower than its trials"
"""Said of a winner, or of one that came before it, whose last run put it behind another; a lap passes it on."""
RIGHT, WRONG, REFUSED = "right", "wrong answer", "refused"
MOST_FAILURES = 4
"""Reasons in the verdict for arms that did not run."""


def give_verdict(
    config: TuneConfig,
    goal: Goal,
    rows: Sequence[Row],
    gates: Mapping[str, GateRow],
    outcome: Outcome | None,
    status: str,
    why: str,
) -> Verdict:
    """The verdict of a search that ended with ``status``."""
    if outcome is None or status != "complete":
        return Verdict(outcome=status, headline=why, exit_code=EXIT_CHECK_FAILED, lines=_lines(rows, gates, {}))
    refused = outcome.refused
    if outcome.winner is None:
        starved = bool(rows) and all(row.status in MEMORY_DEATHS for row in rows)
        what = "nothing fits in memory" if starved else _why_none(rows, gates, goal)
        starved = starved or (bool(gates) and all(gate.out_of_memory for gate in gates.values()))
        code = EXIT_OUT_OF_MEMORY if starved else EXIT_CHECK_FAILED
        headline = f"no configuration of {config.target} was found: {what}"
        return Verdict(outcome="nothing found", headline=headline, exit_code=code, lines=_lines(rows, gates, refused))
    best = estimates(rows)[outcome.winner]
    error = gates[numeric_class(outcome.winner.arm)].error
    headline = (
        f"{outcome.winner}: {format_rate(best.rate)}, error {format_percent(error)} of what is allowed"
        + _beside(rows, outcome.winner)
    )
    lines = [_cost_line(best), *_overtaken(rows, gates, best, goal), *_lines(rows, gates, refused)]
    return Verdict(outcome="tuned", headline=headline, exit_code=EXIT_OK, lines=lines)


def _beside(rows: Sequence[Row], winner: Config) -> str:
    """The rate of the first trial that ran, the plain arm at the batch it began with; '' where that is the winner."""
    known = list(estimates(rows).values())
    first = known[0]
    return "" if first.config == winner else f"; {first.config} ran at {format_rate(first.rate)}"


def _why_none(rows: Sequence[Row], gates: Mapping[str, GateRow], goal: Goal) -> str:
    if gates and not any(gate.passed for gate in gates.values()):
        wrong = [gate for gate in gates.values() if gate.is_judged]
        if not wrong:
            return f"no arm {next(iter(gates.values())).why.replace('could not', 'could', 1)}"
        return f"no arm gives the right answer ({wrong[0].why})"
    if not any(row.ok for row in rows):
        return f"no trial ran ({rows[-1].why})" if rows else "no trial ran"
    known = list(estimates(rows).values())
    if goal.p95_ms is not None and not any(goal.admits(one) for one in known):
        near = min(known, key=lambda one: one.p95_ms)
        return (
            f"none has 95% of its steps within p95_ms = {goal.p95_ms:g}; "
            f"{near.config} comes nearest, with {format_ms(near.p95_ms)}"
        )
    return "none came through its last run, in its final form, with the right answer"


def _overtaken(rows: Sequence[Row], gates: Mapping[str, GateRow], winner: Estimate, goal: Goal) -> list[str]:
    """Says why the table shows another right one well above the winner, or that the winner's last run belied it."""
    right = {name for name, gate in gates.items() if gate.passed}
    last = {row.config: row for row in rows if row.tail}
    died = died_at_last(rows)  # which is told as a refusal
    known = [
        one for config, one in estimates(rows).items() if numeric_class(config.arm) in right and config not in died
    ]
    ranked = goal.order(known)
    first = max(ranked, key=lambda one: one.rate, default=winner)
    tolerated = {"throughput": 1 / (1 + CLOSE), "memory": MEMORY_SHARE}.get(goal.objective, 0.0)
    own = last.get(winner.config)
    if winner.rate >= tolerated * first.rate:
        if own is None or not fell(winner, own, rows):
            return []
        told = f"{OVERTAKEN}: {_slowed(rows, own)}"
    elif first.config in last:
        told = f"{first.config} was passed over, for {OVERTAKEN}: {_slowed(rows, last[first.config])}"
    else:
        told = f"{OVERTAKEN}; {first.config} had {format_rate(first.rate)} in its own"
    return [f"{told}. Other work on this machine may be why: search again when it is idle"]


def _slowed(rows: Sequence[Row], last: Row) -> str:
    """The rate of a last run beside that of the trials before it."""
    before = estimate([row for row in rows if row.config == last.config and row is not last])
    return f"{format_rate(last.samples_per_s or 0.0)} after {format_rate(before.rate if before else 0.0)}"


def _cost_line(best: Estimate) -> str:
    parts = [f"a step takes {format_ms(best.p50_ms)}"]
    if best.supports_p95:
        parts.append(f"95% within {format_ms(best.p95_ms)}")
    parts.append(f"peak memory {format_bytes(best.peak_bytes)}")
    return ", ".join(parts) + f"; {format_count(best.num_processes, 'process', 'processes')}"


def _lines(rows: Sequence[Row], gates: Mapping[str, GateRow], refused: Mapping[str, str]) -> list[str]:
    ends = Counter(row.status for row in rows)
    told = ", ".join(f"{count} {status}" for status, count in ends.items())
    lines = [f"{format_count(len(rows), 'trial')} in {format_s(spent(rows, gates))}: {told}"] if rows else []
    lines += [f"refused {what}: {why}" for what, why in refused.items()] + _failures(rows, refused)
    told_of = [f"{row.arm}: {note}" for row in rows for note in row.notes if note.startswith(TOLD)]
    return lines + list(dict.fromkeys(told_of))


def _failures(rows: Sequence[Row], refused: Mapping[str, str]) -> list[str]:
    """Why arms did not run, each once, where no other word says it: of memory and refusals there is no more to say."""
    first: dict[tuple[str, str], Row] = {}
    for row in rows:
        if row.why and not row.ok and row.status not in MEMORY_DEATHS and refused.get(str(row.config)) != row.why:
            first.setdefault((row.arm, row.status), row)
    told = [f"{row.config} {row.status}: {row.why}" for row in first.values()]
    more = [f"and {len(told) - MOST_FAILURES} more that did not run; the page has them"]
    return told if len(told) <= MOST_FAILURES else told[:MOST_FAILURES] + more


def headline_rows(rows: Sequence[Row], gates: Mapping[str, GateRow], goal: Goal) -> list[dict[str, Any]]:
    """The configurations as a table shows them, fastest first, those that did not run last.

    The best by ``goal`` is marked: of those that are known to answer rightly, or, before any is, of all that may yet.
    """
    known = estimates(rows)
    answers = {config: _answer(gates.get(numeric_class(config.arm))) for config in known}
    for config in died_at_last(rows) & known.keys():
        answers[config]["status"] = REFUSED
    ranked = [one.config for one in goal.order(known.values()) if answers[one.config]["status"] not in (WRONG, REFUSED)]
    best = min(ranked, key=lambda config: answers[config]["status"] != RIGHT, default=None)
    found = [
        {
            "arm": config.arm,
            "batch": config.batch,
            "rate": one.rate,
            "p50_ms": one.p50_ms,
            "p95_ms": one.p95_ms if one.supports_p95 else None,
            "peak_bytes": one.peak_bytes,
            "processes": one.num_processes,
            "is_best": config == best,
            **answers[config],
        }
        for config, one in sorted(known.items(), key=lambda item: -item[1].rate)
    ]
    failed = {row.config: row for row in rows if row.config not in known}
    return found + [
        {"arm": config.arm, "batch": config.batch, "rate": None, "status": row.status, "why": row.why}
        for config, row in failed.items()
    ]


def _answer(gate: GateRow | None) -> dict[str, Any]:
    if gate is None:
        return {"status": "not judged", "error": None}
    return {"status": RIGHT if gate.passed else WRONG, "error": gate.error}
