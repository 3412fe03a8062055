"""Files that are whole or absent: written beside their place, forced to the disk, then renamed."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from hotlap.base.errors import StorageError

ABANDONED_S = 3600.0
"""A writer in another container or on another host cannot be asked whether it lives; one that has not touched its
file for an hour is taken for dead, since a live one writes all the time."""

LEFTOVER = re.compile(r"\.(?P<what>.+)\.(?P<home>[0-9a-f]{8})-(?P<pid>\d+)-(?P<nonce>[0-9a-f]{8})\.tmp")

_in_flight: set[str] = set()
"""Temporaries this process is writing now: a new container often gets the process id of the killed one."""


def storage_error(path: Path, error: OSError, remedy: str) -> StorageError:
    """The error for a user whose disk is full or whose folder may not be written."""
    return StorageError(f"cannot write {str(path)!r}: {error.strerror or error}", remedy=remedy)


def sync_folder(folder: Path) -> None:
    """Forces the names in ``folder`` to the disk; without this a power cut can undo a rename."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def staged(folder: Path, what: str) -> Iterator[tuple[IO[bytes], Callable[[Path], None]]]:
    """A new temporary in ``folder`` to be filled, and the function that gives it its name; unnamed, it is removed.

    The name says whose it is, so that ``remove_leftovers`` can tell a killed writer's file from a live one's.
    """
    temporary = folder / f".{what}.{_home()}-{os.getpid()}-{secrets.token_hex(4)}.tmp"
    _in_flight.add(temporary.name)
    try:
        # Not tempfile: its files are for their owner alone, and the umask would be lost.
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
        with os.fdopen(handle, "wb") as file:

            def publish(path: Path) -> None:
                file.flush()
                os.fsync(file.fileno())
                temporary.replace(path)
                sync_folder(folder)

            yield file, publish
    finally:
        temporary.unlink(missing_ok=True)
        _in_flight.discard(temporary.name)


def write_durably(path: Path, data: bytes, *, remedy: str) -> None:
    """``path`` holds ``data`` whole and on the disk, or what it held before."""
    try:
        with staged(path.parent, path.name) as (file, publish):
            file.write(data)
            publish(path)
    except OSError as error:
        raise storage_error(path, error, remedy) from error


def remove_leftovers(folder: Path) -> list[Path]:
    """Removes what killed writers left half written; never a live writer's file, never one of another name."""
    removed = []
    for path in folder.glob(".*.tmp"):
        match = LEFTOVER.fullmatch(path.name)
        if match is None or not _abandoned(path, match["home"], int(match["pid"])):
            continue
        with suppress(OSError):  # gone already, or a folder that may not be written: a save will say so
            path.unlink()
            removed.append(path)
    return removed


def _abandoned(path: Path, home: str, pid: int) -> bool:
    if home == _home():
        return path.name not in _in_flight if pid == os.getpid() else not _alive(pid)
    try:
        return time.time() - path.stat().st_mtime > ABANDONED_S
    except OSError:
        return False


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _home() -> str:
    """Where a process id means the same process: this host and, on Linux, this process namespace."""
    try:
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        namespace = 0
    return hashlib.sha256(f"{socket.gethostname()} {namespace}".encode()).hexdigest()[:8]


@contextmanager
def locked(folder: Path, warn: Callable[[str], None]) -> Iterator[None]:
    """Holds ``folder`` for one writer at a time; a writer that is killed lets go of it."""
    if os.name != "posix":
        yield
        return
    import fcntl

    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            warn(f"{str(folder)!r} cannot be locked ({error.strerror or error}); let only one run save there at a time")
        yield
    finally:
        os.close(handle)
