"""The record of a run whose target is still being loaded, for whoever stops the run in its first seconds."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotlap.records.environment import capture
from hotlap.records.measurement import Verdict
from hotlap.records.run import begin, now, run_folder, save

LOADING = "The target was being loaded; nothing was measured yet."


@dataclass(kw_only=True)
class Claim:
    """The right of one run to a folder."""

    name: str
    """Of the run."""
    folder: Path
    is_taken: bool = False
    """The run looks after its folder, and the record in it, itself."""

    def take(self) -> Path:
        self.is_taken = True
        return self.folder


@contextlib.contextmanager
def loading(kind: str, name: str, config: Any, sources: dict[str, str]) -> Iterator[Claim]:
    """Holds a record that says so until the claim is taken.

    A run that is interrupted before leaves this record. A target that cannot be loaded leaves nothing: no run has
    begun. From then on the record is the run's own.
    """
    runs: Path = config.runs
    new = not runs.exists()
    record = begin(kind, name, config, sources, capture(import_torch=False))
    record = dataclasses.replace(record, notes=[LOADING])
    claim = Claim(name=name, folder=run_folder(runs, name))
    try:
        save(record, claim.folder)
        yield claim
    except KeyboardInterrupt:
        if not claim.is_taken:
            verdict = Verdict(outcome="interrupted", headline=LOADING, exit_code=1)
            save(dataclasses.replace(record, status="interrupted", finished_at=now(), verdict=verdict), claim.folder)
        raise
    except BaseException:
        if not claim.is_taken:
            _remove(claim.folder, with_runs=new)
        raise


def _remove(folder: Path, *, with_runs: bool) -> None:
    """The folder, and those around it that were made for it alone."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # there are others in it
        folder.parent.rmdir()
        if with_runs:
            folder.parent.parent.rmdir()
