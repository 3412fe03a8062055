"""Which pictures of a folder are finished: one small file for each, written last, so that none is half done."""

from __future__ import annotations

import errno
import functools
import hashlib
import itertools
import json
import os
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hotlap.base.errors import DataError, StorageError
from hotlap.data.micrograph import MICROSCOPES, SUFFIXES, page_name
from hotlap.records.run import write_atomic
from hotlap.segment.exports import up_to_date

FOLDER = "done"
STACKS = (".tif", ".tiff")
"""How files end that may hold several pictures, each with a name of its own."""


def find_files(folder: Path) -> dict[str, Path]:
    """The pictures of a folder by the name of their results, which no two share: the stem, or else the whole name."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise DataError(f"folder {str(folder)!r} {what}", expected="a folder with pictures")
    wanted = (*SUFFIXES, *MICROSCOPES)
    paths = sorted(p for p in folder.iterdir() if p.suffix.lower() in wanted and not p.name.startswith("."))
    if not paths:
        inside = min((p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")), default=None)
        raise DataError(
            f"folder {str(folder)!r} holds no pictures",
            expected=f"files {', '.join(SUFFIXES)}",
            remedy=f"Folders in it are not looked into: give one of them, such as {str(inside)!r}" if inside else "",
        )
    stems = Counter(path.stem for path in paths)
    stacks = {name for path in paths if path.suffix.lower() in STACKS for name in (path.stem, _whole(path))}
    named: dict[str, Path] = {}
    for path in paths:
        short = [path.stem] if stems[path.stem] == 1 else []
        choices = itertools.chain(short, [_whole(path)], (f"{_whole(path)}_{n}" for n in itertools.count(2)))
        named[next(name for name in choices if name not in named and not _is_page(name, stacks))] = path
    return named


def _is_page(name: str, stacks: set[str]) -> bool:
    """Whether a page of one of these files may have this name."""
    stack, _, number = name.rpartition("_page")
    return stack in stacks and number.isdigit()


def _whole(path: Path) -> str:
    return path.name.replace(".", "_")


def prepare(out: Path) -> None:
    """Makes the folder of results, and proves that it can be written before any work is done."""
    try:
        (out / FOLDER).mkdir(parents=True, exist_ok=True)
        probe = out / FOLDER / f".probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise StorageError(
            f"out = {str(out)!r} cannot be written: {error.strerror or error}", remedy="Choose another folder"
        ) from error


def content_digest(path: Path) -> str:
    """Of a file's bytes: a picture that was changed is another one, one that was only touched is not."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Done:
    """The finished pictures in one folder of results, for one network with its settings."""

    def __init__(self, out: Path, settings: Mapping[str, Any]) -> None:
        self.out = out
        self.settings = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:16]

    def pages(self, name: str, digest: str | None = None) -> tuple[list[dict[str, Any]], int]:
        """The entries of a file's pictures that are finished, and how many pictures it has; 0 if that is not known.

        Without a digest, what was finished counts even if the file has changed since.
        """
        single = self._entry(page_name(name, None), digest)
        if single is not None:
            return [single], 1
        found, number = [], 0
        for page in self._pages.get(name, ()):
            entry = self._entry(page, digest)
            if entry is not None:
                found.append(entry)
                number = entry["num_pages"]
        return found, number

    @functools.cached_property
    def _pages(self) -> dict[str, list[str]]:
        """The names of noted pages by that of their file, as they are when it is first asked.

        Looked for file by file, a folder of ten thousand would be gone through ten thousand times.
        """
        found: dict[str, list[str]] = {}
        for note in sorted((self.out / FOLDER).iterdir()):
            stack, _, number = note.stem.rpartition("_page")
            if note.suffix == ".json" and number.isdigit():
                found.setdefault(stack, []).append(note.stem)
        return found

    def _entry(self, name: str, digest: str | None) -> dict[str, Any] | None:
        """What was noted of a picture, if it still holds and its files are there."""
        note = self.out / FOLDER / f"{name}.json"
        try:
            entry: dict[str, Any] = json.loads(note.read_bytes())
            same = digest in (None, entry.get("digest")) and entry.get("settings") == self.settings
            if not same:
                return None
            entry, noted = up_to_date(entry), note.stat().st_mtime_ns
            whole = all(_is_whole(self.out / file, size, noted) for file, size in entry["files"].items())
        except (OSError, ValueError):
            return None
        return entry if whole else None

    def write(self, entry: dict[str, Any], files: Mapping[str, bytes | str]) -> None:
        """Writes a picture's files and then that it is finished; DataError where its name is too long for them.

        The disk is not waited for, several times a picture: what a power cut left empty is seen by its size.
        """
        note = self.out / FOLDER / f"{entry['name']}.json"
        contents = {name: made if isinstance(made, bytes) else made.encode() for name, made in files.items()}
        noted = {**entry, "settings": self.settings, "files": {name: len(made) for name, made in contents.items()}}
        try:
            self._make_way(note, files)
            for name, content in contents.items():
                write_atomic(self.out / name, content, synced=False)
            write_atomic(note, json.dumps(noted) + "\n", synced=False)
        except StorageError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.ENAMETOOLONG:
                raise
            raise DataError(
                f"its results cannot be written: the name {entry['name']!r} is too long", remedy="Rename the file"
            ) from error

    def _make_way(self, note: Path, files: Iterable[str]) -> None:
        """Makes folders for a picture's files, and takes back that it is finished: they may be of other settings."""
        path = note
        try:
            note.unlink(missing_ok=True)
            for path in {(self.out / name).parent for name in files}:
                path.mkdir(exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"cannot write {str(path)!r}: {error.strerror or error}",
                remedy="Remove what is in the way, or choose another folder",
            ) from error


def _is_whole(path: Path, size: int | None, noted: int) -> bool:
    """Whether a file is as large as it was written, where that is known, or was changed after that was noted."""
    found = path.stat()
    return stat.S_ISREG(found.st_mode) and (size in (None, found.st_size) or found.st_mtime_ns > noted)
