"""How fast a training went, beside its metrics: what differs from run to run is kept out of those."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hotlap.engine.durable import storage_error, write_durably

PACE = "pace.jsonl"


@dataclass(frozen=True, kw_only=True)
class PaceRow:
    """The speed of the steps since the row before."""

    step: int
    seconds: float
    """Since the training began, pauses between its starts left out."""
    values: dict[str, float]
    """samples_per_s and, on a card, utilisation and peak_bytes."""


class Pace:
    """Appends to ``pace.jsonl``; a resumed run goes on after the row of its step."""

    def __init__(self, folder: Path, *, resume_step: int) -> None:
        self._path = folder / PACE
        kept = [row for row in read_pace(folder) if row.step <= resume_step]
        self._before = kept[-1].seconds if kept else 0.0
        self._began = time.monotonic()
        write_durably(self._path, b"".join(map(_line, kept)), remedy="Free some space or choose another folder")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        seconds = self._before + time.monotonic() - self._began
        try:
            with open(self._path, "ab") as file:
                file.write(_line(PaceRow(step=step, seconds=seconds, values=dict(values))))
        except OSError as error:
            raise storage_error(self._path, error, "Free some space, then go on with --resume") from error


def read_pace(folder: Path) -> list[PaceRow]:
    """All rows; none where there is no such file, and without a line that is not whole."""
    try:
        lines = (Path(folder) / PACE).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    rows = []
    for line in lines:
        try:
            rows.append(PaceRow(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return rows


def _line(row: PaceRow) -> bytes:
    return json.dumps(vars(row)).encode() + b"\n"
