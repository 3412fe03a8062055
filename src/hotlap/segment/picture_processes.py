"""Pictures read and results worked out in processes beside the run: threads would share one interpreter lock with each
other and with what feeds the card.

A process begins to import in the background, while the network is loaded, and forks the others when they are needed:
see ``picture_main``. Until it is ready, and where it cannot serve, work is done in the thread that asks for it.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Generator
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from hotlap.base.errors import EnvironmentUnusable
from hotlap.measure.beside import ATTEMPTS, ONE_THREAD
from hotlap.measure.nursery import can_fork
from hotlap.measure.passing import Shelf, Window, receive, send
from hotlap.measure.process import revive_error, worker_environment
from hotlap.segment.finishing import Answer, Facts, Finishing
from hotlap.segment.picture_main import END, ERROR, LAST, OK, READY
from hotlap.segment.reading import Bad, Finished, Item, Reading

MAIN = "hotlap.segment.picture_main"
MOST_SENT = 1 << 30
"""Bytes of a picture's maps; larger ones are not copied, but worked on where they are."""
LEAVE_S = 5.0
DIED = (
    f"{ATTEMPTS} processes died while they {{}}; where memory had run out, the log of the system says so. "
    "Try it again with fewer --workers"
)
Work = Finishing | Reading


class PictureProcesses:
    """Reads and finishes pictures for threads that ask for it, each with a process of its own as long as it asks.

    At most ``most`` are at work together, readers and others. With more than there are CPUs, those whom the scheduler
    keeps waiting are the threads that ask them, and the one that feeds the card, whenever it has let go of the
    interpreter's lock.
    """

    def __init__(self, most: int) -> None:
        self._lock = threading.Lock()
        self._free: defaultdict[Work, queue.LifoQueue[_Seat]] = defaultdict(queue.LifoQueue)
        self._seats: list[_Seat] = []
        self._places = threading.Semaphore(most)
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
        seat = self._seat(work)
        try:
            shown = seat.shelf.hold("picture", picture) if work.needs_picture else None
            question = facts, seat.shelf.hold("maps", maps.pop()), shown
            for _ in range(ATTEMPTS):
                if (told := self._ask(seat, work, question)) is not None:
                    answer: Answer = _value(*told)
                    return answer
            died = DIED.format("worked on its results")
            return died if self._is_serving() else work.one(facts, question[1].numpy(), picture)
        finally:
            self._free[work].put(seat)

    def read(self, work: Reading, name: str, path: Path) -> Generator[Item]:
        """As ``work.items``; where a process dies, another goes on, and after several deaths with the next picture.

        Where that kills them, too, the rest of the file is left out.
        """
        if not self._is_ready():
            yield from work.items(name, path)
            return
        seat, begin, deaths, last, is_over = self._seat(work), 0, 0, "", False
        finished: frozenset[int] | None = None
        try:
            while deaths < 2 * ATTEMPTS:
                told = self._ask(seat, work, (name, path, begin, finished))
                while told is not None:
                    if told[0] == END:
                        return
                    item, picture = _value(*told)
                    is_over = told[0] == LAST
                    # Copied: its place is for the next one, and hundreds may wait for their batch.
                    yield item if picture is None else dataclasses.replace(item, picture=picture.numpy().copy())
                    if is_over:
                        return
                    if isinstance(item, Finished):
                        finished = frozenset(entry["page"] for entry in item.entries)
                    else:
                        begin, finished = begin + 1, finished or frozenset()
                    deaths, last = 0, getattr(item, "name", last)
                    told = self._ask(seat, work, None)
                if not self._is_serving():
                    yield from work.items(name, path, begin, finished)
                    return
                deaths += 1
                if deaths == ATTEMPTS:
                    yield Bad(path, DIED.format(f"read what follows {last!r}" if last else "read it"))
                    begin += 1
            yield Bad(path, DIED.format("read the rest of it"))
        except GeneratorExit:
            if not is_over:
                seat.leave()  # it waits to be asked for the rest
            raise
        finally:
            self._free[work].put(seat)

    def _seat(self, work: Work) -> _Seat:
        """One for this work at which nothing is being done, by preference just left; the memory there is warm."""
        try:
            return self._free[work].get_nowait()
        except queue.Empty:
            seat = _Seat()
            with self._lock:
                self._seats.append(seat)
            return seat

    def _ask(self, seat: _Seat, work: Work, question: Any) -> tuple[str, Any] | None:
        """What the process at a seat answers, a new one where there is none; None where it has died."""
        try:
            if not seat.is_taken:
                ours, theirs = socket.socketpair()
                with theirs:
                    seat.take(Connection(ours.detach()))
                    socket.send_fds(self._control, [b"fork"], [theirs.fileno()])
                seat.tell(work)
            with self._places:
                return seat.ask(question)
        except (EOFError, OSError) as error:
            seat.leave()
            if isinstance(error, OSError) and error.errno == errno.EMFILE:  # nobody has died
                raise EnvironmentUnusable(
                    "too many files are open", remedy="Give fewer --workers, or allow more files ('ulimit -n')"
                ) from error
            return None

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
        """Why all is done in threads after all, the first time that it is asked; '' where they are not."""
        with self._lock:
            if self._is_told or not self._why_not:
                return ""
            self._is_told = True
        return (
            "pictures are read and results worked out in threads, which takes longer: the process for them is not used "
            f"({self._why_not})"
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

    def __enter__(self) -> PictureProcesses:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _Seat:
    """One process that answers, or none, and the shared memory in which it is shown its pictures."""

    def __init__(self) -> None:
        self._pipe: Any = None
        self._window = Window()
        self.shelf = Shelf()

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

    def tell(self, message: Any) -> None:
        send(self._pipe, message)

    def ask(self, question: Any) -> tuple[str, Any]:
        """What the process answers, and of what kind that is; EOFError or OSError where it has died."""
        self.tell(question)
        answer: tuple[str, Any] = receive(self._pipe, self._window)
        return answer


def _value(kind: str, value: Any) -> Any:
    """What an answer holds; an error is raised."""
    if kind not in (OK, LAST):
        raise revive_error(value) if kind == ERROR else value
    return value
