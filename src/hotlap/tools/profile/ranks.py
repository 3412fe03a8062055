"""Traces of several ranks: who holds the others up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hotlap.base.errors import DataError
from hotlap.tools.profile.categories import COMMUNICATION
from hotlap.tools.profile.found import Analysis, RankFound

PATTERNS = ("*.pt.trace.json", "*.pt.trace.json.gz", "*.json", "*.json.gz")


def trace_files(given: Sequence[str]) -> list[Path]:
    """The files that were named, and those of the folders that were; the second trace of a profile is not a rank."""
    files: list[Path] = []
    for text in given:
        path = Path(text)
        if not path.is_dir():
            files.append(path)
            continue
        found = next((hits for pattern in PATTERNS if (hits := _traces(path, pattern))), [])
        if not found:
            raise DataError(
                f"folder {text!r} holds no trace", expected="files named *.pt.trace.json or *.pt.trace.json.gz"
            )
        files += found
    return files


def _traces(folder: Path, pattern: str) -> list[Path]:
    return sorted(file for file in folder.glob(pattern) if ".detail." not in file.name and file.name != "record.json")


def compute_ms(analysis: Analysis) -> float:
    """The device's own work of one step, without exchanges, whose length is mostly waiting for others."""
    exchanged = sum(part.ms for part in analysis.categories if part.name == COMMUNICATION)
    return analysis.busy_ms - exchanged


def ranks_found(analyses: Sequence[Analysis], numbers: Sequence[int]) -> list[RankFound]:
    """One row a rank, in order, with how far each is behind the slowest."""
    if len(set(numbers)) != len(numbers):
        twice = next(number for number in numbers if list(numbers).count(number) > 1)
        raise DataError(
            f"two traces are of rank {twice}",
            expected="one trace a rank",
            remedy="Name the files of one run only; traces of two runs are compared with --diff",
        )
    slowest = max(compute_ms(analysis) for analysis in analyses)
    rows = [
        RankFound(
            rank=number,
            trace=analysis.trace,
            step_ms=analysis.step_ms,
            busy_ms=analysis.busy_ms,
            idle_ms=analysis.step_ms - analysis.busy_ms,
            communication_ms=analysis.busy_ms - compute_ms(analysis),
            waits_ms=slowest - compute_ms(analysis),
        )
        for analysis, number in zip(analyses, numbers, strict=True)
    ]
    return sorted(rows, key=lambda row: row.rank)
