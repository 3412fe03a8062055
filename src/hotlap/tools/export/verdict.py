"""An export in one line, and how the process should exit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hotlap.base.errors import EXIT_CHECK_FAILED, EXIT_ENVIRONMENT, EXIT_OK, EXIT_OUT_OF_MEMORY
from hotlap.base.format import format_list
from hotlap.measure.compared import describe_comparison, describe_red_gate
from hotlap.measure.jobs import ArmFailure
from hotlap.records.measurement import Comparison, Gate, Verdict
from hotlap.tools.export.rows import FormRow

OUT_OF_MEMORY = "out of memory"
STOPPED = ("failed", "skipped", OUT_OF_MEMORY)


def give_verdict(
    rows: Sequence[FormRow],
    gates: Mapping[str, Gate],
    comparisons: Sequence[Comparison],
    failures: Sequence[ArmFailure],
    *,
    out: Path,
    named: bool,
) -> Verdict:
    """A red gate exits 1; no form at all, or one missing that was asked for by name, 4 or 5; anything else 0."""
    right = [row.form for row in rows if row.status == "right"]
    missing = [row for row in rows if row.status in STOPPED]
    red = [describe_red_gate(gates[row.arm]) + "; it was not delivered" for row in rows if row.status == "wrong"]
    lines = [*red, *(f"{row.form} was not made: {row.why}" for row in missing)]
    lines += [f"{f.arm} gave no time: {f.what}" for f in failures]
    heads = [c for c in comparisons if c.quantity == "wall"]
    lines += [describe_comparison(c) for c in heads]
    made = f"{format_list(right)} in {out}" if right else "no form was made"
    if red:
        return Verdict(outcome="gate failed", headline=red[0], exit_code=EXIT_CHECK_FAILED, lines=[*lines, made])
    if missing and (named or not right):
        code = EXIT_OUT_OF_MEMORY if any(row.status == OUT_OF_MEMORY for row in missing) else EXIT_ENVIRONMENT
        headline = f"{made}; {format_list([row.form for row in missing])} could not be made"
        return Verdict(outcome="form failed", headline=headline if right else lines[0], exit_code=code, lines=lines)
    return Verdict(outcome="exported", headline=made + _fastest(heads), exit_code=EXIT_OK, lines=lines)


def _fastest(heads: Sequence[Comparison]) -> str:
    faster = [c for c in heads if c.verdict == "faster"]
    if not heads:
        return ""
    if not faster:
        return "; none was found to be faster than the model itself here"
    return "; fastest here: " + describe_comparison(max(faster, key=lambda c: c.ratio))
