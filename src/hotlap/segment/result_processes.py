"""Results in processes beside the run: threads would share one interpreter lock with each other and with what feeds
the card.

A process begins to import in the background, while the network is loaded, and forks the others when they are needed:
see ``result_main``. Until it is ready, and where it cannot serve, work is done in the thread that asks for it.
"""

from __future__ import annotations

import os
import queue
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from multiprocessing.connection import Connection
from types import TracebackType
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from hotlap.measure.beside import ATTEMPTS, ONE_THREAD
from hotlap.measure.nursery import can_fork
from hotlap.measure.passing import put, receive, send
from hotlap.measure.process import revive_error, worker_environment
from hotlap.segment.finishing import Answer, Facts, Finishing
from hotlap.segment.result_main import READY

MAIN = "hotlap.segment.result_main"
MOST_SENT = 1 << 30
"""Bytes of a picture's maps; larger ones are not copied, but worked on where they are."""
LARGEST_HELD = 32 << 20
"""Bytes of shared memory that is kept for the next picture."""
LEAVE_S = 5.0
DIED = (
    f"{ATTEMPTS} processes died while they worked on its results; where memory had run out, "
    "the log of the system says so. Try it again with fewer --workers"
)


class ResultProcesses:
    """Finishes pictures for threads that ask for it, each with a process of its own as long as it asks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: queue.LifoQueue[_Seat] = queue.LifoQueue()
        self._seats: list[_Seat] = []
        self._ready = False
        self._why_not = "" if can_fork() else f"{sys.platform} cannot fork safely"
        self._is_told = False
        self._last_words: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process: subprocess.Popen[bytes] | None = None
        if not self._why_not:
            self._begin()

    def _begin(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", MAIN, str(theirs.fileno())],  # -P: nothing of the user's folder
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._last_words,
                env={**worker_environment(), **ONE_THREAD},
                pass_fds=[theirs.fileno()],
                process_group=0,  # a terminal's Ctrl-C is for the caller, who still needs what is under way
            )

    def finish(self, work: Finishing, facts: Facts, maps: list[np.ndarray], picture: np.ndarray) -> Answer:
        """As ``work.one``, which it raises the errors of; ``maps`` is emptied as soon as its one item is copied."""
        if maps[0].nbytes > MOST_SENT or not self._is_ready():
            return work.one(facts, maps.pop(), picture)
        seat = self._seat()
        try:
            shown = seat.hold("picture", picture) if work.needs_picture else None
            question = facts, seat.hold("maps", maps.pop()), shown
            for _ in range(ATTEMPTS):
                try:
                    if not seat.is_taken:
                        self._fork_for(seat, work)
                    kind, value = seat.ask(question)
                except (EOFError, OSError):
                    seat.leave()
                    continue
                if kind == "ok":
                    answer: Answer = value
                    return answer
                raise revive_error(value) if kind == "error" else value
            return DIED if self._is_serving() else work.one(facts, question[1].numpy(), picture)
        finally:
            self._free.put(seat)

    def _seat(self) -> _Seat:
        """One at which nothing is being done, by preference one that was just left; the memory there is warm."""
        try:
            return self._free.get_nowait()
        except queue.Empty:
            seat = _Seat()
            with self._lock:
                self._seats.append(seat)
            return seat

    def _fork_for(self, seat: _Seat, work: Finishing) -> None:
        """A new process at a seat; OSError where there are none any more."""
        ours, theirs = socket.socketpair()
        with theirs:
            seat.take(Connection(ours.detach()))
            socket.send_fds(self._control, [b"fork"], [theirs.fileno()])
        seat.tell(work)

    def _is_ready(self) -> bool:
        """Whether processes can be had by now; does not wait."""
        with self._lock:
            if not self._ready and not self._why_not and self._is_heard():
                said = self._hear()
                self._ready = said == READY
                self._why_not = "" if self._ready else said or self._death()
            return self._ready

    def _is_serving(self) -> bool:
        """Whether new processes can still be had."""
        with self._lock:
            if self._ready and self._is_heard():  # once ready it says nothing any more: this is its end
                self._ready, self._why_not = False, self._death()
            return self._ready

    def _is_heard(self) -> bool:
        return bool(select.select([self._control], [], [], 0)[0])

    def _hear(self) -> str:
        try:
            return self._control.recv(4096).decode()
        except OSError:
            return ""

    def _death(self) -> str:
        self._last_words.seek(0)
        lines = self._last_words.read()[-2000:].strip().splitlines()
        return "it died" + (f": {lines[-1]}" if lines else "")

    def trouble(self) -> str:
        """Why results are worked out in threads after all, the first time that it is asked; '' where they are not."""
        with self._lock:
            if self._is_told or not self._why_not:
                return ""
            self._is_told = True
        return (
            f"results are worked out in threads, which takes longer: the process for them is not used ({self._why_not})"
        )

    def pids(self) -> list[int]:
        """The process that forks, if it is there."""
        return [self._process.pid] if self._process is not None else []

    def close(self) -> None:
        """Ends all of them; nothing may be under way."""
        process, self._process = self._process, None
        if process is not None:
            for seat in self._seats:
                seat.leave()
            self._control.close()
            try:
                process.wait(LEAVE_S if self._ready else 0.0)  # one that still imports does not hear
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._last_words.close()

    def __enter__(self) -> ResultProcesses:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _Seat:
    """One process that answers, or none, with the shared memory in which it is given its pictures."""

    def __init__(self) -> None:
        self._pipe: Any = None
        self._held: dict[str, Tensor] = {}

    @property
    def is_taken(self) -> bool:
        """Whether there is a process, as far as is known."""
        return self._pipe is not None

    def take(self, pipe: Any) -> None:
        """Begins with the process at the other end of a pipe."""
        self._pipe = pipe

    def leave(self) -> None:
        """Ends the process, after what it is doing."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    def hold(self, name: str, array: np.ndarray) -> Tensor:
        """A copy in shared memory: where the last one was, if it was as large, for new memory takes thrice as long."""
        held = self._held.get(name)
        if held is None or tuple(held.shape) != array.shape:
            held = put(torch.from_numpy(np.ascontiguousarray(array)))
            self._held = {**self._held, name: held} if array.nbytes <= LARGEST_HELD else {}
        else:
            np.copyto(held.numpy(), array)
        return held

    def tell(self, message: Any) -> None:
        send(self._pipe, message)

    def ask(self, question: Any) -> Any:
        """What the process answers; EOFError or OSError where it has died."""
        self.tell(question)
        return receive(self._pipe)
