"""One process at a time works in a folder: a run whose parent was killed may still be saving its last checkpoint."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hotlap.base.errors import UsageError
from hotlap.engine.durable import storage_error

LOCK = ".training"
WAIT_S = 150.0
"""Longer than a training that was told to stop may take for its last step and checkpoint."""


@contextmanager
def alone_in(
    folder: Path, *, wait_s: float = WAIT_S, say: Callable[[str], None] = lambda text: None, does: str = "trains",
    then: str = "go on with --resume",
) -> Iterator[None]:  # fmt: skip
    """Holds ``folder`` for this process, waiting for one that is about to leave; a killed process lets go of it.

    ``does`` and ``then`` are said to whoever waited in vain. Nobody may hold a folder twice: leaving once lets go.
    """
    if os.name != "posix":
        yield
        return
    import fcntl

    try:
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise storage_error(folder / LOCK, error, "Choose a folder that may be written") from error
    try:
        deadline, told = time.monotonic() + wait_s, False
        while True:
            try:
                # Of this process alone: the loader's workers, forked from it, do not inherit a lock of this kind.
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except (BlockingIOError, PermissionError) as error:
                if time.monotonic() >= deadline:
                    raise UsageError(
                        f"another process {does} in {str(folder)!r}",
                        remedy=f"Wait until it has ended, or end it; then {then}",
                    ) from error
            if not told:
                say(f"another process still {does} in {str(folder)!r}; waiting for it to leave")
                told = True
            time.sleep(0.05)
        yield
    finally:
        os.close(handle)
