"""The folder of an export: filled beside its place, then put there as a whole."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from hotlap.base.errors import StorageError, UsageError

MANIFEST = "manifest.json"
MARK = "hotlap_export"
"""A key of the manifest by which an export knows one that it may replace."""
PART = ".part"
ABANDONED_S = 6 * 3600.0
"""A folder that nothing was added to for this long has lost its writer: no process of an export lives that long."""


def check_free(out: Path) -> None:
    """Refuses a place that holds anything but an earlier export."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not out.is_dir():
        raise UsageError(f"out = {str(out)!r} is a file", expected="a folder, or a new name")
    try:
        known = MARK in json.loads((out / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        known = False
    if not known:
        raise UsageError(
            f"out = {str(out)!r} holds other files than an export", remedy="Choose another --out, or empty it yourself"
        )


@contextlib.contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A new folder beside ``out``, gone at the end unless :func:`publish` has given it its name."""
    place = out.resolve()
    part = place.parent / f".{place.name}.{secrets.token_hex(4)}{PART}"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(place)
        part.mkdir()
    except OSError as error:
        raise StorageError(
            f"cannot write beside out = {str(out)!r}: {error.strerror or error}", remedy="Choose another --out"
        ) from error
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _remove_abandoned(out: Path) -> None:
    for path in out.parent.glob(f".{out.name}.*{PART}"):
        if time.time() - path.stat().st_mtime > ABANDONED_S:
            shutil.rmtree(path, ignore_errors=True)


def keep_only(part: Path, names: Sequence[str]) -> None:
    """Removes what wrong forms and exporters that failed have left in the folder."""
    for path in part.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name not in names:
            path.unlink()


def publish(part: Path, out: Path) -> None:
    """``out`` holds what ``part`` held; an earlier export goes only once the new one is in its place."""
    place = out.resolve()
    try:
        for path in part.iterdir():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        if not place.exists():
            part.rename(place)
            return
        before = part.with_name(part.name + ".before")
        place.rename(before)
        try:
            part.rename(place)
        except OSError:
            before.rename(place)
            raise
        shutil.rmtree(before, ignore_errors=True)
    except OSError as error:
        raise StorageError(
            f"cannot put the export at out = {str(out)!r}: {error.strerror or error}",
            remedy="Free some space or choose another --out; what was there before is untouched",
        ) from error
