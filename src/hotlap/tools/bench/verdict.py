"""A bench in one line, from its arms and comparisons. Nothing here measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hotlap.base.errors import EXIT_CHECK_FAILED, EXIT_ENVIRONMENT, EXIT_INCONCLUSIVE, EXIT_OK, EXIT_OUT_OF_MEMORY
from hotlap.base.format import format_ms_interval
from hotlap.measure.compared import describe_comparison, describe_red_gate
from hotlap.measure.jobs import ArmFailure
from hotlap.records.measurement import Arm, Comparison, Gate, Verdict


def give_verdict(
    arms: Sequence[Arm],
    gates: Mapping[str, Gate],
    comparisons: Sequence[Comparison],
    failures: Sequence[ArmFailure],
) -> Verdict:
    """The run in one line, and how the process should exit.

    A red gate exits 1; an arm that ran out of memory 5, one that failed otherwise 4; a run whose every headline
    comparison is inconclusive 3; anything else 0.
    """
    lines = [describe_red_gate(gate) for gate in gates.values() if not gate.passed]
    lines += [f"{f.arm} gave no time: {f.what}" for f in failures]
    heads = [c for c in comparisons if c.quantity == "wall" and c.reason != "context arm"]
    lines += [describe_comparison(c) for c in heads]
    if any(not gate.passed for gate in gates.values()):
        return Verdict(outcome="gate failed", headline=lines[0], exit_code=EXIT_CHECK_FAILED, lines=lines)
    if failures:
        code = EXIT_OUT_OF_MEMORY if any(f.out_of_memory for f in failures) else EXIT_ENVIRONMENT
        return Verdict(outcome="arm failed", headline=lines[0], exit_code=code, lines=lines)
    if not heads:
        only = next((a for a in arms if a.summary("wall")), None)
        wall = only.summary("wall") if only else None
        if only is None or wall is None:
            return Verdict(
                outcome="nothing timed", headline="nothing was timed", exit_code=EXIT_ENVIRONMENT, lines=lines
            )
        headline = f"{only.name}: a step takes {format_ms_interval(wall.median, wall.low, wall.high)}"
        return Verdict(outcome="timed", headline=headline, exit_code=EXIT_OK, lines=[headline])
    best = max(heads, key=lambda c: (c.verdict == "faster", c.ratio))
    if all(c.verdict == "inconclusive" for c in heads):
        return Verdict(outcome="inconclusive", headline=lines[0], exit_code=EXIT_INCONCLUSIVE, lines=lines)
    outcome = (
        best.verdict
        if best.verdict != "inconclusive"
        else next(c.verdict for c in heads if c.verdict != "inconclusive")
    )
    return Verdict(outcome=outcome, headline=describe_comparison(best), exit_code=EXIT_OK, lines=lines)
