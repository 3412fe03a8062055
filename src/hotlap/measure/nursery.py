"""Processes that start in a moment: a nursery imports torch once and forks a worker for each job of a search."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from hotlap.measure.process import ON_CARD, NurseryGone, lent_nursery, worker_environment

MAIN = "hotlap.measure.nursery_main"
COMPILERS = ("torch._dynamo", "torch._inductor.compile_fx")
"""What torch imports only when it is first used: the former with the first optimizer, both with torch.compile."""
READY_S = 180.0
"""A nursery that has not imported torch by then is given up."""
LEAVE_S = 5.0


class Nursery:
    """Starts workers for :func:`hotlap.measure.process.run_job`; begins to import at once, in the background.

    Where it cannot serve (no fork, another environment or folder than at its start, its own death) ``start`` raises
    :class:`NurseryGone`, and why is in ``notes``, once; the job then gets a fresh process.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        self.notes: list[str] = []
        self._number = 0
        self._ready = False
        self._folder, self._environment = Path.cwd(), _comparable(worker_environment())
        self._process: subprocess.Popen[bytes] | None = None
        self._kept = tempfile.TemporaryDirectory(prefix="hotlap-", ignore_cleanup_errors=True)
        self._last_words: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        if can_fork():
            self._open(modules)
        else:
            self._tell(f"{sys.platform} cannot fork safely")

    def _open(self, modules: Sequence[str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MAIN, str(theirs.fileno()), self.kept, *modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._last_words,
                env=worker_environment(),
                pass_fds=[theirs.fileno()],
            )

    @property
    def kept(self) -> str:
        """A folder in which its workers leave what the next ones need not compute again; it goes with the nursery."""
        return self._kept.name

    def start(self, stderr: IO[str]) -> Fledgling:
        """A worker, forked; its last words go to ``stderr``."""
        environment = worker_environment()
        if self._process is None:
            raise NurseryGone
        if _comparable(environment) != self._environment or Path.cwd() != self._folder:
            self._tell("the environment or the folder is another than at its start")
            raise NurseryGone
        self._wait_ready()
        self._number += 1
        job_end, job = os.pipe()
        answer, answer_end = os.pipe()
        try:
            message = f"start {self._number} {environment[ON_CARD]}".encode()
            socket.send_fds(self._control, [message], [job_end, answer_end, stderr.fileno()])
        except OSError as error:
            os.close(job)
            os.close(answer)
            raise self.given_up("it died") from error
        finally:
            os.close(job_end)
            os.close(answer_end)
        return Fledgling(self, self._number, job, answer)

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while not self._ready:
            waiting, _, _ = select.select([self._control], [], [], max(0.0, deadline - time.monotonic()))
            said = self.hear() if waiting else f"unfit it was not ready after {READY_S:g} s"
            if said.startswith("unfit "):
                raise self.given_up(said.removeprefix("unfit "))
            self._ready = said == "ready"

    def hear(self) -> str:
        """The nursery's next message."""
        try:
            said = self._control.recv(4096).decode()
        except OSError:
            said = ""
        if not said:
            raise self.given_up("it died")
        return said

    def tell(self, message: str) -> None:
        """A message to the nursery; nothing happens where it is gone."""
        try:
            self._control.send(message.encode())
        except OSError:
            return  # whoever waits for the worker learns it from hear()

    def given_up(self, why: str) -> NurseryGone:
        """The error that says so; from now on every job gets a fresh process, and ``notes`` says why."""
        self.close()
        self._last_words.seek(0)
        tail = self._last_words.read()[-2000:].strip()
        self._tell(why + (f": {tail.splitlines()[-1]}" if tail else ""))
        return NurseryGone()

    def _tell(self, why: str) -> None:
        text = f"trials start in fresh processes, which takes longer: the process that forks them is not used ({why})"
        if text not in self.notes:
            self.notes.append(text)

    def close(self) -> None:
        """Ends the nursery, and the worker that it may have."""
        process, self._process = self._process, None
        if process is None:
            return
        self._control.close()
        try:
            process.wait(LEAVE_S if self._ready else 0.0)  # one that still imports does not hear
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
        self._last_words.close()
        self._kept.cleanup()


@contextlib.contextmanager
def own_or_lent(modules: Sequence[str] = ()) -> Iterator[Nursery]:
    """The nursery that a caller has lent, or one for this block alone."""
    known = lent_nursery()
    if isinstance(known, Nursery):
        yield known
        return
    with Nursery(modules) as own:
        yield own


class Fledgling:
    """A forked worker, with as much of Popen's interface as a conversation needs."""

    def __init__(self, nursery: Nursery, number: int, job: int, answer: int) -> None:
        self._nursery, self._number = nursery, number
        self._code: int | None = None
        self.stdin: IO[str] = os.fdopen(job, "w", encoding="utf-8")
        self.stdout: IO[str] = os.fdopen(answer, encoding="utf-8", errors="replace")

    def kill(self) -> None:
        if self._code is None:
            self._nursery.tell(f"kill {self._number}")

    def wait(self) -> int:
        """The exit code, negative for a signal as Popen has it; NurseryGone when nobody is left to tell it."""
        while self._code is None:
            verb, number, code = self._nursery.hear().split()
            if (verb, int(number)) == ("code", self._number):
                self._code = int(code)
        return self._code


def can_fork() -> bool:
    """Whether a process that has imported torch may be forked here; macOS has libraries that break."""
    return sys.platform.startswith("linux") and hasattr(os, "fork") and hasattr(socket, "send_fds")


def _comparable(environment: dict[str, str]) -> dict[str, str]:
    """What must be as it was at the nursery's start: all that a library may have read when it was imported."""
    return {name: value for name, value in environment.items() if name != ON_CARD}
