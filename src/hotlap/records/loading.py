"""The record of a run whose target is still being loaded, for whoever stops the run in its first seconds."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hotlap.records.environment import capture
from hotlap.records.measurement import Verdict
from hotlap.records.run import begin, folder_name, now, run_folder, save

FolderFor = Callable[[str], Path]
"""The folder of a run by its name."""
LOADING = "The target was being loaded; nothing was measured yet."


@contextlib.contextmanager
def loading(kind: str, name: str, config: Any, sources: dict[str, str]) -> Iterator[FolderFor]:
    """Holds a record that says so until what it gives is asked for the run's folder, by the run's final name.

    A run that is interrupted before leaves this record. A target that cannot be loaded leaves nothing: no run has
    begun. From then on the record is the run's own.
    """
    runs: Path = config.runs
    new = not runs.exists()
    record = begin(kind, name, config, sources, capture(import_torch=False))
    record = dataclasses.replace(record, notes=[LOADING])
    first = run_folder(runs, name)
    folder: Path | None = first

    def folder_for(final: str) -> Path:
        nonlocal folder
        assert folder is not None, "the run has its folder already"
        before, folder = folder, None
        if folder_name(final) == folder_name(name):
            return before
        other = run_folder(runs, final)
        save(dataclasses.replace(record, name=final), other)
        _remove(before, with_runs=False)
        return other

    try:
        save(record, first)
        yield folder_for
    except KeyboardInterrupt:
        if folder is not None:
            verdict = Verdict(outcome="interrupted", headline=LOADING, exit_code=1)
            save(dataclasses.replace(record, status="interrupted", finished_at=now(), verdict=verdict), folder)
        raise
    except BaseException:
        if folder is not None:
            _remove(folder, with_runs=new)
        raise


def _remove(folder: Path, *, with_runs: bool) -> None:
    """The folder, and those around it that were made for it alone."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # there are others in it
        folder.parent.rmdir()
        if with_runs:
            folder.parent.parent.rmdir()
