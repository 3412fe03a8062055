"""Where the doctor's record lies. A disk that takes nothing is itself a finding, so it may not cost the others."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hotlap.base.errors import StorageError
from hotlap.records.run import RunRecord, run_folder, save


class Unkept(StorageError):
    """The examination is done, but its record could not be written; it is here, to be shown all the same."""

    def __init__(self, record: RunRecord, why: StorageError) -> None:
        super().__init__(f"the record could not be written: {why.what}", expected=why.expected, remedy=why.remedy)
        self.record = record


class Shelf:
    """Keeps the latest state of one record under ``runs/name``, as long as the disk takes it."""

    def __init__(self, runs: Path, name: str) -> None:
        self._runs, self._name = runs, name
        self._folder: Path | None = None
        self._new = False
        with contextlib.suppress(OSError):  # a place that may not be looked into is told when it is written to
            self._new = not runs.exists()

    def keep(self, record: RunRecord) -> RunRecord:
        """The record that knows its path; raises :class:`Unkept` and leaves no empty folder where it has none."""
        try:
            self._folder = self._folder or run_folder(self._runs, self._name)
            return save(record, self._folder)
        except StorageError as error:
            self._leave()
            raise Unkept(record, error) from error

    def try_to_keep(self, record: RunRecord) -> None:
        """For a record that is not the last one: the next may fare better, or tells the error."""
        with contextlib.suppress(Unkept):
            self.keep(record)

    def _leave(self) -> None:
        """Removes the folders that were made for this record alone; one that holds an earlier state of it stays."""
        made = [self._folder] if self._folder is not None else []
        with contextlib.suppress(OSError):
            for folder in [*made, self._runs / self._name, *([self._runs] if self._new else [])]:
                folder.rmdir()
                self._folder = None
