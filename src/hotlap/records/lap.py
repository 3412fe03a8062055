"""What a lap leaves behind: its stages, each with the record it made, and what they came to together."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotlap.base.errors import RecordError
from hotlap.records.codec import decode
from hotlap.records.run import RECORD_NAME, STAGES, RunRecord, load_record

PENDING, RUNNING, DONE, SKIPPED, FAILED, INTERRUPTED = (
    "pending", "running", "done", "skipped", "failed", "interrupted",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LapStage:
    """One stage of a lap, as far as it came."""

    name: str
    what: str
    """What it does, in a few words."""
    status: str = PENDING
    """pending, running, done, skipped, failed or interrupted."""
    record: str = ""
    """Its record, as a path from the lap's own folder; '' where there is none."""
    seconds: float = 0.0
    headline: str = ""
    """What came out."""
    why: str = ""
    """Why it was skipped, or failed."""


@dataclass(frozen=True, kw_only=True)
class LapRow:
    """One way to run the workload in the table of before and after, as the one interleaved bench measured it."""

    role: str
    """before, batch (the arm of before at the batch of after), after or advice."""
    arm: str
    batch: int
    ms: float | None = None
    ms_low: float | None = None
    ms_high: float | None = None
    samples_per_s: float | None = None
    peak_bytes: int | None = None
    peak_from: str = ""
    """bench or search: which of the two measured the peak."""
    error: float | None = None
    """The numeric gate's worst check, as a share of what is allowed; below 1 the answer is right."""
    right: bool | None = None
    ratio: float | None = None
    """Samples a second over those of the row before; None for that row itself and for a wrong answer."""
    low: float | None = None
    high: float | None = None
    verdict: str = ""
    why: str = ""
    """Why there is no time, or no verdict."""


@dataclass(frozen=True, kw_only=True)
class LapAdvice:
    """One piece of the first profile's advice: what it promised and what the bench measured."""

    name: str
    arm: str
    predicted: float
    """Times as fast, by the profile's arithmetic."""
    at_most: bool = False
    """The prediction is a bound."""
    measured: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: str = ""
    """Of the bench; 'wrong answer' where the gate was red, 'failed' where it did not run."""
    basis: str = ""
    score: float | None = None
    """Measured over predicted: 1 for a promise that was kept, less for one that was not."""


@dataclass(frozen=True, kw_only=True)
class Lap:
    """``extra["lap"]`` of a lap's record."""

    target: str
    mode: str
    source: str = ""
    """A digest of the target's file, where it is one."""
    baseline: str = ""
    """The arm that the lap began with."""
    batch: int | None = None
    """Its batch."""
    tuned: str = ""
    """The arm that the search chose; '' where it found none."""
    tuned_batch: int | None = None
    stages: list[LapStage] = field(default_factory=list)
    table: list[LapRow] = field(default_factory=list)
    advice: list[LapAdvice] = field(default_factory=list)
    paste: str = ""
    """Plain PyTorch code that does what the winning arm does."""
    commands: list[str] = field(default_factory=list)
    """Command lines that use what was found."""
    profile: str = ""
    """Where the tuned profile lies."""
    report: str = ""
    """The page, as a path from the lap's own folder."""
    budget_s: float = 0.0

    def stage(self, name: str) -> LapStage | None:
        return next((stage for stage in self.stages if stage.name == name), None)


def lap_of(record: RunRecord) -> Lap:
    """What a lap's record says of the lap."""
    found: dict[str, Any] | None = record.extra.get("lap") if record.kind == "lap" else None
    if found is None:
        raise RecordError(f"record {record.path or record.name!r} is that of a {record.kind}", expected="that of a lap")
    try:
        lap: Lap = decode(Lap, found)
    except ValueError as error:
        raise RecordError(f"record {record.path!r} is malformed: {error}", remedy="Repeat the lap") from error
    return lap


def stage_records(record: RunRecord) -> dict[str, RunRecord]:
    """The records that the stages of a lap left, by the stage's name; those that cannot be read are left out."""
    folder, found = Path(record.path).parent, {}
    for stage in lap_of(record).stages:
        if stage.record and (folder / stage.record).is_file():
            found[stage.name] = load_record(folder / stage.record)
    return found


def newest_record(folder: Path, name: str) -> RunRecord | None:
    """The newest record under a lap's folder that its stage ``name`` left, whole or in part; None without one."""
    files = sorted((folder / STAGES / name).glob(f"*/{RECORD_NAME}"), key=lambda file: file.parent.name)
    return load_record(files[-1]) if files else None
