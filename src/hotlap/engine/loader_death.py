"""Why a loader's worker died: torch knows its pid and at best the signal; the kernel's counters tell the rest."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotlap.base.errors import LoaderDied
from hotlap.base.format import format_bytes
from hotlap.device.host import memory_available, oom_kill_count, read_host, shm_free_bytes

LOW_MEMORY_BYTES = 256 * 2**20
"""Less than this left on the host is called low: about what one worker holds of its own once torch is imported."""
DYING_S = 5.0
"""How long a worker whose files are closed may take to be dead for whoever asks; on a busy host that is not at once."""
HAND_OVER_ERRORS = (RuntimeError, OSError, EOFError)
"""What getting a batch from a worker raises when the worker is gone."""
_DEAD = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) (is killed by signal: ([^.]*)|exited unexpectedly)")
_NO_SHM = re.compile(r"unable to (allocate|open|resize|mmap|write).*shared memory|No space left on device", re.I | re.S)
_NO_SENDER = re.compile(r"Pin memory thread exited unexpectedly|unable to open shared memory.*No such file", re.S)
_NO_FILES = re.compile(r"too many open files|ancdata", re.I)


def explain_death(
    error: BaseException, *, workers: Sequence[Any] = (), kills_before: int | None = None, root: Path = Path("/")
) -> LoaderDied | None:
    """The error that says why, or None if ``error`` is no worker's death.

    torch raises it wherever the trainer's process happens to be, so a training loop asks this of any RuntimeError.
    ``workers`` are the processes of the loader that raised it while it handed a batch over: a connection that was cut
    means that one of them is dead or dying, and only then. ``kills_before`` is oom_kill_count at the loader's start.
    """
    text = str(error)
    found = _DEAD.search(text) or (_DEAD.search(_heard_of(workers)) if _is_cut_off(error) else None)
    if found is None:
        if _NO_FILES.search(text):
            return LoaderDied(
                "a loader's worker could not hand over its batch: too many open files",
                remedy="Raise the limit with 'ulimit -n', or take fewer workers or a smaller prefetch_factor",
            )
        return _no_shared_memory("a loader's worker", text.splitlines()[0], root) if _NO_SHM.search(text) else None
    pid = found[1].split(",")[0].strip()
    how = _how(found[3] or "", pid, workers)
    who = f"a loader's worker (pid {pid}) died of {how}"
    if how in ("SIGBUS", "Bus error"):
        return _no_shared_memory(who, "", root)
    if how in ("SIGKILL", "Killed"):
        return _killed(who, kills_before, root)
    return LoaderDied(who, remedy="Run with num_workers = 0, which shows where it happens")


def _is_cut_off(error: BaseException) -> bool:
    """Whether the sender of a batch was not there any more.

    A batch's memory is fetched from the worker that made it, over a socket. A killed process closes its files before
    it counts as dead, so that torch, which then looks whether all workers live, may find that they do. The thread that
    pins memory ends without a word of why.
    """
    gone = isinstance(error, (ConnectionError, EOFError, FileNotFoundError))
    return gone or _NO_SENDER.search(str(error)) is not None


def _heard_of(workers: Sequence[Any]) -> str:
    """What torch says of a dead worker, of the first that is dead or will be in a moment; '' if all live on."""
    deadline = time.monotonic() + DYING_S
    try:
        while workers:
            for worker in workers:
                if worker.exitcode is not None:
                    return f"DataLoader worker (pid(s) {worker.pid}) exited unexpectedly"
            if time.monotonic() >= deadline:
                break
            time.sleep(0.01)
    except RuntimeError as heard:  # torch's handler of SIGCHLD says so itself meanwhile
        return str(heard)
    return ""


def _how(said: str, pid: str, workers: Sequence[Any]) -> str:
    """The signal's name, from the exit code where torch did not hear it in time."""
    code = next((w.exitcode for w in workers if str(w.pid) == pid), None)
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return said.strip() or (f"exit code {code}" if code is not None else "an unknown cause")


def _no_shared_memory(who: str, said: str, root: Path) -> LoaderDied:
    size, free = read_host(root).shm_bytes, shm_free_bytes(root)
    room = (
        f"{format_bytes(size)}, {format_bytes(free)} of it free now"
        if size is not None and free is not None
        else "not there"
    )
    said = f" ({said})" if said else ""
    return LoaderDied(
        f"{who}{said}: most likely there was no room for its batch in /dev/shm, which is {room}",
        remedy="Give the container more with --shm-size, or take fewer workers or a smaller prefetch_factor",
    )


def _killed(who: str, kills_before: int | None, root: Path) -> LoaderDied:
    kills, left = oom_kill_count(root), memory_available(root)
    remedy = "Take fewer workers or a smaller prefetch_factor, or give the job more memory"
    if kills is not None and kills_before is not None and kills > kills_before:
        return LoaderDied(
            f"{who}: the kernel killed it for memory (oom_kill rose from {kills_before} to {kills})", remedy=remedy
        )
    if left is not None and left < LOW_MEMORY_BYTES:
        return LoaderDied(f"{who}: most likely the kernel, for memory: {format_bytes(left)} are left", remedy=remedy)
    about = f"{format_bytes(left)} of memory are left" if left is not None else "how much memory is left is not known"
    return LoaderDied(
        f"{who}: {about}, so somebody may have ended it, or memory ran out for a moment",
        remedy=f"'dmesg' names the kernel's victims. {remedy}",
    )
