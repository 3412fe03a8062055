"""The nursery's own process: imports torch once, then forks a worker for every job it is handed.

It must stay what a fork can copy: one thread, no CUDA, no open card. Where that cannot be had it says so and ends.
Its parent talks to it through a socket: ``start NUMBER CALLERS`` with the worker's stdin, stdout and stderr, and
``kill NUMBER``. It answers ``ready`` or ``unfit WHY`` once, and ``code NUMBER CODE`` at the end of every worker.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hotlap.base.process_group import kill_group
from hotlap.measure.process import ON_CARD

ALWAYS = ("torch", "hotlap.measure.worker")
WARM_POOL = "TORCH_WARM_POOL"
"""Of torch.compile: with 0 its helper processes do not start when it is imported, but when they are needed."""
PR_SET_PDEATHSIG = 1
"""Of Linux: the signal that a process gets when its parent dies."""
Handler = Callable[..., Any] | int | None


def main() -> None:
    """Serves until the parent closes its end; begins anew without the extra modules if they make forking unsafe."""
    control, kept, modules = socket.socket(fileno=int(sys.argv[1])), sys.argv[2], sys.argv[3:]
    why = _load(modules)
    if why and modules:
        os.execv(sys.executable, [sys.executable, "-m", "hotlap.measure.nursery_main", sys.argv[1], kept])
    try:
        control.send(f"unfit {why}".encode() if why else b"ready")
        if not why:
            _Server(control).serve()
    finally:  # a parent that was killed cannot do it, and what lies there may be large
        shutil.rmtree(kept, ignore_errors=True)


def _load(modules: Sequence[str]) -> str:
    """Why this process cannot be forked after importing all this; '' if it can."""
    before = os.environ.get(WARM_POOL)
    os.environ[WARM_POOL] = "0"
    try:
        for name in (*ALWAYS, *modules):
            importlib.import_module(name)
    except Exception as error:
        if not modules:
            raise
        return f"{type(error).__name__}: {error}"
    finally:
        del os.environ[WARM_POOL]
        if before is not None:
            os.environ[WARM_POOL] = before
    shed_threads()
    return unfit()


def shed_threads() -> None:
    """Lets libraries that end their threads at a fork do it now: OpenBLAS starts some when numpy is imported."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def unfit(process: Path = Path("/proc/self")) -> str:
    """Why a fork of this process would be broken; '' if it would not."""
    import torch

    if threading.active_count() > 1:
        return f"{threading.active_count()} Python threads run"
    tasks = len(list((process / "task").iterdir()))
    if tasks > 1:
        return f"{tasks} threads run"
    if torch.cuda.is_initialized():
        return "CUDA is in use"
    for link in (process / "fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:
            continue  # the folder's own handle, closed by now
        if target.startswith("/dev/nvidia"):
            return f"{target} is open"
    return ""


class _Server:
    """One worker at a time, each a fork of this process."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.number, self.pid = -1, 0
        """Of the worker that runs; pid 0 for none."""
        self.bell, bell_end = os.pipe()
        os.set_blocking(bell_end, False)
        self._handler: Handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(bell_end)
        self._bell_end = bell_end
        gc.collect()
        gc.freeze()

    def serve(self) -> None:
        try:
            while self._turn():
                pass
        except (BrokenPipeError, ConnectionError):
            pass  # the parent is gone, and the worker's code with it
        finally:
            self._kill()
            if self.pid:
                os.waitpid(self.pid, 0)  # what it still writes would outlive the folder

    def _turn(self) -> bool:
        ready, _, _ = select.select([self.control.fileno(), self.bell], [], [])
        if self.bell in ready:
            os.read(self.bell, 4096)
            self._reap()
        return self._obey() if self.control.fileno() in ready else True

    def _reap(self) -> None:
        if self.pid:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                kill_group(pid)
                self.pid = 0
                self.control.send(f"code {self.number} {os.waitstatus_to_exitcode(status)}".encode())

    def _obey(self) -> bool:
        """Whether the parent still is there, after doing what it asks for."""
        message, streams, _, _ = socket.recv_fds(self.control, 256, 3)
        if not message:
            return False
        verb, number, *rest = message.decode().split()
        if verb == "start":
            self._start(int(number), streams, callers=rest[0])
        elif int(number) == self.number:
            self._kill()
        return True

    def _kill(self) -> None:
        if self.pid:
            kill_group(self.pid)

    def _start(self, number: int, streams: Sequence[int], *, callers: str) -> None:
        assert not self.pid, "one worker at a time"
        self.number, self.pid = number, os.fork()
        if self.pid == 0:
            self._become_worker(streams, callers)
        _lead_group(self.pid)
        for stream in streams:
            os.close(stream)

    def _become_worker(self, streams: Sequence[int], callers: str) -> None:
        """Never returns: from here on this process is what ``worker.py`` is in a fresh one."""
        from hotlap.measure import worker

        _lead_group(0)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # nobody else could end it once the nursery is dead
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, self._handler)
        self.control.close()
        os.close(self.bell)
        os.close(self._bell_end)
        for place, stream in enumerate(streams):
            os.dup2(stream, place)
            os.close(stream)
        os.environ[ON_CARD] = callers
        try:
            worker.main()
        finally:
            os._exit(1)  # it ends by itself; an interruption must not go back to serving


def _lead_group(pid: int) -> None:
    """Gives a worker, 0 being the caller, a group of its own, which ends with it; the first of both to ask does it."""
    with contextlib.suppress(OSError):  # it is gone already
        os.setpgid(pid, 0)


if __name__ == "__main__":
    main()
