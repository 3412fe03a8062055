"""The first and the last profile of one workload beside each other: what the change did to the parts of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hotlap.records.run import RunRecord
from hotlap.tools.report.figures import Figure, figure
from hotlap.tools.report.profile_charts import ChangeRow, changes

NUM_ROWS = 10


@dataclass(frozen=True, kw_only=True)
class ProfilePair:
    """Two profiles that can be compared, and their categories before and after."""

    first: int
    last: int
    """Places of the two among the records."""
    rows: list[ChangeRow]
    """The largest change first."""
    step_ms: float
    """The first profile's traced step, or its part for one sample."""
    per: str
    """What the times are of: a step, or one sample where the batches differ."""


def analysis_of(record: RunRecord) -> dict[str, Any]:
    """What a profile found; empty for any other record and for a profile that found nothing."""
    found = record.extra.get("profile")
    return (found.get("analysis") or {}) if record.kind == "profile" and isinstance(found, dict) else {}


def profile_pair(records: Sequence[RunRecord]) -> ProfilePair | None:
    """The first and the last profile, where they are of one target and mode; None otherwise."""
    places = [place for place, record in enumerate(records) if analysis_of(record)]
    if len(places) < 2:
        return None
    first, last = records[places[0]], records[places[-1]]
    if [first.config.get(key) for key in ("target", "mode")] != [last.config.get(key) for key in ("target", "mode")]:
        return None
    batches = [record.config.get("batch") for record in (first, last)]
    shared = batches[0] == batches[1]
    if not shared and not all(batches):
        return None
    sizes = [1.0 if shared else float(batch or 1) for batch in batches]
    before, after = (
        {part["name"]: part["ms"] / size for part in analysis_of(record)["categories"]}
        for record, size in zip((first, last), sizes, strict=True)
    )
    rows = [
        ChangeRow(label=name, before_ms=before.get(name, 0.0), after_ms=after.get(name, 0.0))
        for name in {**before, **after}
    ]
    rows.sort(key=lambda row: -abs(row.after_ms - row.before_ms))
    step = analysis_of(first)["step_ms"] / sizes[0]
    return ProfilePair(
        first=places[0], last=places[-1], rows=rows, step_ms=step, per="a step" if shared else "one sample"
    )


def pair_figure(records: Sequence[RunRecord]) -> Figure | None:
    """The categories of both profiles, the largest change first; None where there are not two."""
    pair = profile_pair(records)
    rows = [row for row in pair.rows if row.before_ms != row.after_ms][:NUM_ROWS] if pair else []
    if pair is None or not rows:
        return None
    caption = (
        f"Time of {pair.per} under the profiler, by category. Grey: run {pair.first + 1}. Coloured: run "
        f"{pair.last + 1}, green where it takes less. Two single runs: a cause is shown by a bench, not by this."
    )
    return figure("What a step is made of, before and after", partial(changes, rows), caption)
