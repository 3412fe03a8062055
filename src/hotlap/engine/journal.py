"""The metrics of a training as it goes: lines of JSON, a table, and TensorBoard if asked."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hotlap.base.errors import ConfigError, EnvironmentUnusable, RecordError, StorageError
from hotlap.engine.durable import remove_leftovers, storage_error, write_durably

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

LINES = "metrics.jsonl"
TABLE = "metrics.csv"
BOARD = "tensorboard"
COLUMNS = ("step", "epoch", "split", "name", "value")
SPLITS = ("train", "eval")
REMEDY = "Free some space or choose another folder; what was logged before is untouched"


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was logged at once."""

    step: int
    epoch: int
    split: str
    """train or eval."""
    values: dict[str, float]


class Journal:
    """Appends metrics to the files of one run's folder; one journal writes there at a time.

    The lines are what counts; the table is made from them again whenever a journal is opened. A run that resumes from a
    checkpoint opens it with that checkpoint's step, and the rows after it, which will be logged again, are dropped.
    ``resume_rows``, the ``num_rows`` of when it was saved, also drops those of the step itself that came later.
    """

    def __init__(
        self,
        folder: Path,
        *,
        tensorboard: bool = False,
        resume_step: int | None = None,
        resume_rows: int | None = None,
    ) -> None:
        self.folder, self._wants_board = Path(folder), tensorboard
        self.num_rows = 0
        self._board = self._open_board(resume_step) if tensorboard else None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.folder)
            self._rewrite(resume_step, resume_rows)
        except OSError as error:
            raise storage_error(self.folder / LINES, error, REMEDY) from error

    def log(self, step: int, epoch: int, split: str, values: Mapping[str, float]) -> None:
        """Puts one row in every file; when this returns, killing the process does not lose it."""
        if split not in SPLITS:
            raise ConfigError(f"split = {split!r} is unknown", expected=" or ".join(SPLITS))
        row = Row(step=step, epoch=epoch, split=split, values={k: _number(k, v) for k, v in values.items()})
        self._append(self._lines, self.folder / LINES, _line(row))
        self._append(self._table, self.folder / TABLE, _cells(_flat([row])))
        self.num_rows += 1
        if self._board is not None:
            for name, value in row.values.items():
                self._board.add_scalar(f"{split}/{name}", value, step)

    def truncate_after(self, step: int) -> None:
        """Drops every row later than ``step``, in all files, whole or not at all."""
        self._close_files()
        self._rewrite(step)
        if self._wants_board:
            self._close_board()
            self._board = self._open_board(step)

    def sync(self) -> None:
        """Forces all rows to the disk: before a checkpoint, so that after a power cut none is missing before it."""
        for file, name in ((self._lines, LINES), (self._table, TABLE)):
            try:
                os.fsync(file.fileno())
            except OSError as error:
                raise storage_error(self.folder / name, error, REMEDY) from error
        if self._board is not None:
            self._board.flush()

    def close(self) -> None:
        """Ends the journal; closing twice is fine."""
        self._close_files()
        self._close_board()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rewrite(self, last_step: int | None, most_rows: int | None = None) -> None:
        """Both files anew, without later rows and half a last line, and open for more."""
        lines, table = self.folder / LINES, self.folder / TABLE
        rows = [row for row in _read_rows(lines)[:most_rows] if last_step is None or row.step <= last_step]
        self.num_rows = len(rows)
        header = _cells([COLUMNS])
        # The lines first: killed in between, the next journal makes the table from them.
        for path, data in ((lines, b"".join(map(_line, rows))), (table, header + _cells(_flat(rows)))):
            if not path.is_file() or path.read_bytes() != data:
                write_durably(path, data, remedy=REMEDY)
        self._lines = open(lines, "ab", buffering=0)  # noqa: SIM115 - open as long as the journal is
        self._table = open(table, "ab", buffering=0)  # noqa: SIM115

    def _append(self, file: IO[bytes], path: Path, data: bytes) -> None:
        """Adds ``data`` whole, or leaves the file as it was: half a row would spoil those that follow."""
        before = os.fstat(file.fileno()).st_size
        try:
            written = file.write(data)
            if written != len(data):
                raise OSError(f"only {written} of {len(data)} bytes were written")
        except OSError as error:
            os.truncate(file.fileno(), before)
            raise storage_error(path, error, REMEDY) from error

    def _open_board(self, resume_step: int | None) -> SummaryWriter:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            raise EnvironmentUnusable(
                f"tensorboard = True needs TensorBoard, which cannot be imported ({error})",
                remedy="Install it: pip install 'hotlap[tensorboard]'",
            ) from error
        try:
            # From this step on, TensorBoard hides what an earlier writer had logged.
            purge_step = None if resume_step is None else resume_step + 1
            return SummaryWriter(str(self.folder / BOARD), purge_step=purge_step)
        except OSError as error:
            raise storage_error(self.folder / BOARD, error, REMEDY) from error

    def _close_files(self) -> None:
        self._lines.close()
        self._table.close()

    def _close_board(self) -> None:
        if self._board is not None:
            self._board.close()
            self._board = None


def read_journal(folder: Path) -> list[Row]:
    """All rows in the order they were logged; half a last line, of a run that goes on or was killed, is left out."""
    path = Path(folder) / LINES
    if not path.is_file():
        raise RecordError(f"no metrics at {str(path)!r}", expected="the folder of a training")
    return _read_rows(path)


def _read_rows(path: Path) -> list[Row]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"cannot read {str(path)!r}: {error.strerror or error}") from error
    rows = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):  # after the last newline: nothing, or half a line
        try:
            rows.append(_row(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordError(
                f"line {number} of {str(path)!r} is no row of metrics: {line[:60]!r} ({error})",
                remedy="Mend or remove the line",
            ) from error
    return rows


def _row(data: Any) -> Row:
    odd = data.get("non_finite", {})
    values = {name: float(odd[name] if value is None else value) for name, value in data["values"].items()}
    return Row(step=int(data["step"]), epoch=int(data["epoch"]), split=str(data["split"]), values=values)


def _line(row: Row) -> bytes:
    """One line of strict JSON; a value that is not finite is null, and ``non_finite`` says which it was."""
    odd = {name: repr(value) for name, value in row.values.items() if not math.isfinite(value)}
    values = {name: None if name in odd else value for name, value in row.values.items()}
    data: dict[str, Any] = {"step": row.step, "epoch": row.epoch, "split": row.split, "values": values}
    return json.dumps({**data, "non_finite": odd} if odd else data, allow_nan=False).encode() + b"\n"


def _flat(rows: Iterable[Row]) -> Iterator[tuple[object, ...]]:
    return ((row.step, row.epoch, row.split, name, value) for row in rows for name, value in row.values.items())


def _cells(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode(errors="backslashreplace")


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} = {value!r} is no number", expected="a number or a tensor of one") from error
