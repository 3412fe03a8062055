"""``hotlap profile --diff``: two profiles, each a record or a trace."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from hotlap.base import events
from hotlap.base.errors import EXIT_OK, RecordError
from hotlap.base.events import Emit
from hotlap.data.kineto import read_trace
from hotlap.records.codec import decode, encode
from hotlap.records.environment import capture
from hotlap.records.measurement import Verdict
from hotlap.records.run import RunRecord, begin, load_record, now, resolve_run, run_folder, save
from hotlap.tools.profile.analyse import analyse
from hotlap.tools.profile.config import ProfileConfig
from hotlap.tools.profile.diff import Side, compare
from hotlap.tools.profile.found import Analysis
from hotlap.tools.profile.story import diff_headline, diff_story

TRACE_ENDS = (".trace.json", ".json.gz")
HEAD = 2**16
"""Characters of a file in which a trace says what it is."""


def diff(config: ProfileConfig, emit: Emit, *, sources: dict[str, str] | None = None) -> RunRecord:
    """The record that sets two profiles side by side."""
    emit(events.start("profile", 2, "reading"))
    before, after = (_side(text, config.runs) for text in config.pair)
    if before.label == after.label:
        before, after = (dataclasses.replace(s, label=f"{s.label} ({w})") for s, w in ((before, "1"), (after, "2")))
    found = compare(before, after)
    name = config.name or "profile-diff"
    folder = run_folder(config.runs, name)
    resolved = dataclasses.replace(config, diff=config.pair, target="")
    record = begin("profile", name, resolved, sources or {}, capture())
    verdict = Verdict(outcome="compared", headline=diff_headline(found), exit_code=EXIT_OK, lines=diff_story(found))
    record = dataclasses.replace(
        record,
        status="complete",
        finished_at=now(),
        extra={"diff": encode(found)},
        notes=list(found.warnings),
        verdict=verdict,
    )
    emit(events.finish("profile"))
    return save(record, folder)


def _side(text: str, runs: Path) -> Side:
    path = Path(text)
    if path.is_file() and (text.endswith(TRACE_ENDS) or _has_events(path)):
        return Side(label=path.name.partition(".pt.")[0], analysis=analyse(read_trace(path)), step_ms=None)
    record = load_record(resolve_run(text, runs))
    return Side(label=_label(record), analysis=profile_of(record), step_ms=_step_ms(record))


def _has_events(path: Path) -> bool:
    """Whether a file of any name begins as a trace does, and not as a record, whose first word is its schema."""
    with contextlib.suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
        start = file.read(HEAD)
        return "traceEvents" in start and '"schema_version"' not in start
    return False


def profile_of(record: RunRecord) -> Analysis:
    """The analysis that a record holds."""
    found: Any = record.extra.get("profile")
    if not isinstance(found, dict) or "analysis" not in found:
        raise RecordError(
            f"record {record.path or record.name!r} holds no profile: it is a {record.kind} run, {record.status}",
            expected="a complete record of 'hotlap profile', or a trace",
        )
    try:
        analysis: Analysis = decode(Analysis, found["analysis"])
    except ValueError as error:
        raise RecordError(
            f"record {record.path or record.name!r} has a malformed profile: {error}", remedy="Repeat the profile"
        ) from error
    return analysis


def _label(record: RunRecord) -> str:
    arm = record.config.get("arm")
    return f"{record.name} {arm}" if arm else record.name


def _step_ms(record: RunRecord) -> float | None:
    measured = record.extra["profile"].get("measured") or {}
    value = measured.get("step_ms")
    return float(value) if isinstance(value, (int, float)) else None
