"""Checkpoints that are whole or absent: one file each, named by step and digest, verified before it is read."""

from __future__ import annotations

import hashlib
import json
import math
import operator
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import torch

from hotlap.base.errors import ConfigError, RecordError, StorageError
from hotlap.engine.durable import locked, remove_leftovers, staged, sync_folder, write_durably
from hotlap.engine.plain_state import UnstorableState, check_plain

FORMAT = 1
HEADER = "hotlap_checkpoint"
"""The one key of the file that is not the caller's: format, step, score, higher_is_better."""

BEST = "best.json"
NAME = re.compile(r"step-(?P<step>\d{8,})-(?P<digest>[0-9a-f]{16})\.pt")
REMEDY = "Free some space or choose another folder; the checkpoints that were there before are untouched"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A state as it was saved, and where it was found."""

    step: int
    path: Path
    state: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Best:
    """What ``best.json`` holds: the checkpoint with the best score so far."""

    name: str
    step: int
    score: float
    higher_is_better: bool


class _Damaged(Exception):
    """A checkpoint's bytes are not those that were written."""


def warn_user(message: str) -> None:
    """The warning of a store that was given no listener of its own."""
    warnings.warn(message, RuntimeWarning, stacklevel=3)


class CheckpointStore:
    """The checkpoints of one run in one folder: the last few and the best.

    Killed at any instant, a save leaves all of the new checkpoint or none of it, and the older ones as they were.
    """

    def __init__(self, folder: Path, *, keep: int = 3, warn: Callable[[str], None] = warn_user) -> None:
        if keep < 1:
            raise ConfigError(f"keep = {keep} is too small", expected="at least 1")
        self.folder, self.keep, self.warn = Path(folder), keep, warn
        if self.folder.is_dir():
            remove_leftovers(self.folder)

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, ascending; nothing is verified."""
        return sorted({_step_of(path) for path in self._files()})

    def save(
        self, state: Mapping[str, Any], *, step: int, score: float | None = None, higher_is_better: bool = False
    ) -> Path:
        """The new checkpoint's file, on the disk when this returns; only then are older ones pruned.

        A score that is not a number is never the best, and of equal ones the earlier stays.
        """
        if step < 0:
            raise ConfigError(f"step = {step} is negative", expected="the number of steps done")
        if HEADER in state:
            raise UnstorableState(f"state[{HEADER!r}] is taken", expected="another key")
        check_plain(state)
        header = {"format": FORMAT, "step": step, "score": None if score is None else float(score),
                  "higher_is_better": bool(higher_is_better)}  # fmt: skip
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.folder)
            with staged(self.folder, f"step-{step:08d}") as (file, publish):
                path = self.folder / f"step-{step:08d}-{_dump({HEADER: header, **state}, file)}.pt"
                with locked(self.folder, self.warn):
                    publish(path)
                    best = self._note_best(path, header)
                    self._prune(path, best)
        except OSError as error:
            raise StorageError(
                f"cannot write the checkpoint of step {step} in {str(self.folder)!r}: {error.strerror or error}",
                remedy=REMEDY,
            ) from error
        return path

    def load(self, which: str | Path = "latest", *, map_location: Any = "cpu") -> Checkpoint | None:
        """The newest checkpoint that is whole (``latest``), the ``best``, or the one at a path; None if there is none.

        A damaged file is set aside as ``*.corrupt`` with a warning, and the next is tried. A path is read or refused.
        """
        if which not in ("latest", "best"):
            return self._load_path(Path(which), map_location)
        found = self._newest(map_location) if which == "latest" else self._best(map_location)
        if found is None:
            return None
        path, data = found
        header = data.pop(HEADER)
        if which == "latest":
            self._recover_best(path, header)
        return Checkpoint(step=header["step"], path=path, state=data)

    def best_path(self) -> Path | None:
        """The file of the best checkpoint, not verified; None when none has a score."""
        best = self._noted_best()
        return self.folder / best.name if best and (self.folder / best.name).is_file() else None

    def best_score(self) -> float | None:
        """Of the best checkpoint; None when none has a score."""
        best = self._noted_best()
        return best.score if best and (self.folder / best.name).is_file() else None

    def rewind(self, step: int) -> list[Path]:
        """Sets aside, as ``*.superseded``, every checkpoint later than ``step``; their new paths.

        For a run that goes on from an older checkpoint than the newest: otherwise ``latest`` would still be the newest.
        """
        later = [path for path in self._files() if _step_of(path) > step]
        if not later:
            return []
        try:
            with locked(self.folder, self.warn):
                moved = [path.replace(path.with_name(path.name + ".superseded")) for path in later]
                sync_folder(self.folder)
                self._mend_best()
        except OSError as error:
            raise StorageError(
                f"cannot set aside the checkpoints after step {step} in {str(self.folder)!r}: {error.strerror or error}"
            ) from error
        return moved

    def _files(self) -> list[Path]:
        """All checkpoints by their names, newest first; of one step, the one written last."""
        found = []
        for path in self.folder.glob("step-*.pt"):
            try:
                written_ns = path.stat().st_mtime_ns
            except FileNotFoundError:  # pruned by another writer just now
                continue
            if NAME.fullmatch(path.name):
                found.append((_step_of(path), written_ns, path))
        return [path for *_, path in sorted(found, reverse=True)]

    def _prune(self, saved: Path, best: Best | None) -> None:
        """Removes all but the last ``keep`` steps, the one just saved and the best."""
        files = self._files()
        newest_of_step = {_step_of(path): path.name for path in reversed(files)}
        newest_of_step[_step_of(saved)] = saved.name
        last = sorted(newest_of_step, reverse=True)[: self.keep]
        wanted = {saved.name, *(newest_of_step[step] for step in last), best.name if best else ""}
        for path in files:
            if path.name not in wanted:
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:  # the new checkpoint is safe: a folder that grows must not end the run
                    self.warn(f"the old checkpoint {str(path)!r} cannot be removed: {error.strerror or error}")

    def _newest(self, map_location: Any) -> tuple[Path, dict[str, Any]] | None:
        faults: dict[str, str] = {}
        while todo := [path for path in self._files() if path.name not in faults]:
            data = self._try(todo[0], map_location, faults)
            if data is not None:
                return todo[0], data
        self._refuse_unreadable(faults)
        return None

    def _best(self, map_location: Any) -> tuple[Path, dict[str, Any]] | None:
        faults: dict[str, str] = {}
        best = self._noted_best() or self._rank()
        while best is not None:
            path = self.folder / best.name
            data = self._try(path, map_location, faults)
            if data is not None:
                return path, data
            best = self._rank(without=faults)
            self.warn(f"the best checkpoint that is left in {str(self.folder)!r} is {best.name if best else 'none'}")
        if self._files():
            raise RecordError(
                f"no checkpoint in {str(self.folder)!r} has a score", remedy="Load 'latest', or save with a score"
            )
        self._refuse_unreadable(faults)
        return None

    def _try(self, path: Path, map_location: Any, faults: dict[str, str]) -> dict[str, Any] | None:
        """What the file holds, or None with the reason among the faults and, if it is damage, the file set aside."""
        try:
            return _read(path, map_location)
        except FileNotFoundError:
            faults[path.name] = "is gone"
        except OSError as error:
            faults[path.name] = f"cannot be read: {error.strerror or error}"
            self.warn(f"the checkpoint {str(path)!r} {faults[path.name]}; the one before is tried")
        except _Damaged as damage:
            faults[path.name] = str(damage)
            self.warn(f"the checkpoint {str(path)!r} is damaged: it {damage}; {_set_aside(path)}")
        return None

    def _refuse_unreadable(self, faults: Mapping[str, str]) -> None:
        """Refuses to start anew where checkpoints are, or were, and none can be read."""
        told = {path.name: "was set aside earlier" for path in sorted(self.folder.glob("step-*.pt.corrupt"))
                if path.name.removesuffix(".corrupt") not in faults}  # fmt: skip
        told |= faults
        if told:
            raise RecordError(
                f"no checkpoint in {str(self.folder)!r} can be read: "
                + "; ".join(f"{name} {reason}" for name, reason in told.items()),
                remedy="Restore one from a copy, or move the files away to start anew",
            )

    def _load_path(self, path: Path, map_location: Any) -> Checkpoint:
        """The checkpoint in one file; a bare name is looked for in the store's folder too."""
        path = path if path.exists() else self.folder / path
        try:
            data = _read(path, map_location)
        except _Damaged as damage:
            raise RecordError(f"the checkpoint {str(path)!r} {damage}", remedy="Load 'latest' instead") from damage
        except OSError as error:
            raise RecordError(
                f"no checkpoint at {str(path)!r}: {error.strerror or error}",
                expected="'latest', 'best' or the path of a checkpoint",
            ) from error
        if not NAME.fullmatch(path.name):
            self.warn(f"the checkpoint {str(path)!r} has no digest in its name; it was read without being verified")
        return Checkpoint(step=data.pop(HEADER)["step"], path=path, state=data)

    def _noted_best(self) -> Best | None:
        """What ``best.json`` says, if it is there; damaged, it is worked out again from the checkpoints."""
        try:
            return Best(**json.loads((self.folder / BEST).read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            self.warn(f"{str(self.folder / BEST)!r} is damaged ({error}); the best is looked for among the checkpoints")
            return self._rank()

    def _note_best(self, path: Path, header: Mapping[str, Any]) -> Best | None:
        """The best checkpoint with this one counted in; ``best.json`` names it before anything is pruned."""
        best = self._mend_best()
        candidate = _as_best(path, header)
        if candidate and best and candidate.higher_is_better != best.higher_is_better:
            self.warn(
                f"higher_is_better = {candidate.higher_is_better} now; the best score so far, {best.score}, is dropped"
            )
            best = None
        if candidate and (best is None or _better(candidate, best)):
            self._write_best(candidate)
            return candidate
        return best

    def _mend_best(self) -> Best | None:
        """The noted best; if its file was set aside, the best of those that are left, noted in its place."""
        best = self._noted_best()
        if best and not (self.folder / best.name).is_file():
            best = self._rank()
            self._write_best(best)
        return best

    def _write_best(self, best: Best | None) -> None:
        if best is None:
            (self.folder / BEST).unlink(missing_ok=True)
        else:
            write_durably(self.folder / BEST, json.dumps(asdict(best)).encode() + b"\n", remedy=REMEDY)

    def _recover_best(self, path: Path, header: Mapping[str, Any]) -> None:
        """Notes a best score whose writer was killed after its checkpoint was in place and before ``best.json`` was."""
        candidate, best = _as_best(path, header), self._noted_best()
        if candidate is None or (best is not None and not _better(candidate, best)):
            return
        try:
            with locked(self.folder, self.warn):
                self._note_best(path, header)
        except (OSError, StorageError) as error:
            self.warn(f"{BEST} cannot be brought up to date: {error}")

    def _rank(self, without: Mapping[str, str] | None = None) -> Best | None:
        """The best of the checkpoints that are whole, by the scores they hold; the newest decides what better means."""
        best: Best | None = None
        for path in self._files():
            try:
                candidate = None if path.name in (without or {}) else _as_best(path, _read(path, "cpu")[HEADER])
            except (_Damaged, OSError, RecordError):  # whoever asks for this one is told
                continue
            if candidate and (best is None or _better(candidate, best) or candidate.score == best.score):
                best = candidate
        return best


def _step_of(path: Path) -> int:
    return int(path.name.split("-")[1])


def _as_best(path: Path, header: Mapping[str, Any]) -> Best | None:
    score = header["score"]
    if score is None or math.isnan(score):
        return None
    return Best(name=path.name, step=header["step"], score=score, higher_is_better=header["higher_is_better"])


def _better(new: Best, old: Best) -> bool:
    return (operator.gt if old.higher_is_better else operator.lt)(new.score, old.score)


class _Digesting:
    """A file for torch to write to: digests what passes, and keeps the first error until torch is out of the way.

    An error that passes through torch's writer comes out as another one, about positions in the archive.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.digest = file, hashlib.sha256()
        self.error: BaseException | None = None

    def write(self, data: Any) -> int:
        if self.error is None:
            try:
                self.file.write(data)
                self.digest.update(data)
            except BaseException as error:  # noqa: BLE001 - Ctrl-C too; _dump raises it again
                self.error = error
        return len(data)

    def flush(self) -> None:
        """Nothing: the file is flushed when it is published."""


def _dump(data: Mapping[str, Any], file: IO[bytes]) -> str:
    """Writes ``data``; the digest of the bytes that were written."""
    sink = _Digesting(file)
    torch.save(dict(data), sink)  # type: ignore[arg-type]
    if sink.error is not None:
        raise sink.error
    return sink.digest.hexdigest()[:16]


def _read(path: Path, map_location: Any) -> dict[str, Any]:
    """What a checkpoint's file holds, header included; bytes are compared with the name before they are unpickled."""
    named = NAME.fullmatch(path.name)
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
        if not _is_archive(file):
            raise _Damaged(
                f"is cut short or overwritten: {os.fstat(file.fileno()).st_size} bytes without the archive's end"
            )
        if named and digest != named["digest"]:
            raise _Damaged(f"has the digest {digest}, not that of its name")
        file.seek(0)
        try:
            # Only this error means refused bytes. Others, such as too little memory, are no fault of the file.
            data = torch.load(file, map_location=map_location, weights_only=True, mmap=False)
        except pickle.UnpicklingError as error:
            raise _Damaged(f"holds what torch refuses to load: {str(error).splitlines()[0]}") from error
    header = data.get(HEADER) if isinstance(data, dict) else None
    if not isinstance(header, dict):
        raise RecordError(f"{str(path)!r} has no {HEADER!r} entry", expected="a checkpoint written by Hotlap")
    if header.get("format") != FORMAT:
        raise RecordError(
            f"the checkpoint {str(path)!r} has format = {header.get('format')!r}",
            expected=f"format = {FORMAT}",
            remedy="Read it with the hotlap that wrote it",
        )
    if named and header["step"] != int(named["step"]):
        raise _Damaged(f"holds step {header['step']}, not that of its name")
    return data


def _is_archive(file: IO[bytes]) -> bool:
    """Whether a file ends as an archive does."""
    try:
        return zipfile.is_zipfile(file)
    except zipfile.BadZipFile:  # Python 3.11 lets it pass where the end names other disks
        return False


def _set_aside(path: Path) -> str:
    """Renames a damaged file to ``*.corrupt`` and says so; what cannot be renamed is left and said too."""
    try:
        path.replace(path.with_name(path.name + ".corrupt"))
    except OSError as error:
        return f"it could not be renamed ({error.strerror or error}), and the one before is tried"
    return f"it is kept as {path.name}.corrupt, and the one before is tried"
