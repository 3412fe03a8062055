"""Where pictures are decoded and answers finished: in threads of the service, or in processes beside it.

Threads are enough where little is done in Python. Outlines and measurements of hundreds of objects are not little: they
would share one interpreter lock with the door and with each other. Each desk is then a process of its own, and only
handles of shared memory pass the door.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import gc
import json
import os
import queue
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from hotlap.base.channel import keep_from_forks
from hotlap.base.errors import WorkerDied
from hotlap.measure.beside import ATTEMPTS, ONE_THREAD, settle
from hotlap.measure.passing import put, receive, send
from hotlap.measure.process import freeze_error, revive_error
from hotlap.measure.servable import Decoded, FileAnswer, ModelSpec, Rows, Servable, Signature
from hotlap.tools.serve.runner import MakeServable, leave_signals_to_the_door, told_error

START_S = 600.0
"""How long a desk may take to get ready: the first one on a machine compiles."""
Options = Mapping[str, Any]


class Desk(Protocol):
    """What stands on both sides of the models; called from several threads."""

    def start(self) -> None:
        """Gets ready, and returns when it is."""
        ...

    def decode(self, model: str, body: bytes, options: Options, signature: Signature) -> Decoded: ...

    def finish(self, model: str, out: Rows, facts: Mapping[str, Any], options: Options) -> bytes | FileAnswer:
        """The answer as JSON text, or as a file."""
        ...

    def stop(self) -> None: ...


class LocalDesk:
    """In this very process."""

    def __init__(self, servables: Mapping[str, Servable]) -> None:
        self._servables = dict(servables)

    def start(self) -> None:
        for servable in self._servables.values():
            getattr(servable, "warm_up", _nothing)()

    def decode(self, model: str, body: bytes, options: Options, signature: Signature) -> Decoded:
        return self._servables[model].decode(body, options, signature)

    def finish(self, model: str, out: Rows, facts: Mapping[str, Any], options: Options) -> bytes | FileAnswer:
        answer = self._servables[model].finish(out, facts, options)
        if isinstance(answer, FileAnswer):
            return answer
        return json.dumps(answer, separators=(",", ":")).encode()

    def stop(self) -> None:
        return


def _nothing() -> None:
    return


class ProcessDesks:
    """Several processes, each of which does one thing at a time; one that dies is started again."""

    def __init__(self, num: int, specs: Sequence[ModelSpec], make: MakeServable, *, limit_s: float = 120.0) -> None:
        """``make`` must be importable by name. What takes longer than ``limit_s`` counts as a death."""
        self._specs, self._make, self._limit_s = tuple(specs), make, limit_s
        self._all = [_Process(self._specs, make) for _ in range(num)]
        self._free: queue.LifoQueue[_Process] = queue.LifoQueue()

    def start(self) -> None:
        """The first alone, since what it compiles the others find on disk."""
        self._all[0].start(START_S)
        with ThreadPoolExecutor(len(self._all)) as pool:
            list(pool.map(lambda each: each.start(START_S), self._all[1:]))
        for each in self._all:
            self._free.put(each)

    def decode(self, model: str, body: bytes, options: Options, signature: Signature) -> Decoded:
        decoded: Decoded = self._ask("decode", model, body, dict(options), signature)
        return decoded

    def finish(self, model: str, out: Rows, facts: Mapping[str, Any], options: Options) -> bytes | FileAnswer:
        answer: bytes | FileAnswer = self._ask("finish", model, out, dict(facts), dict(options))
        return answer

    def _ask(self, *question: Any) -> Any:
        desk = self._free.get()
        try:
            for attempt in range(ATTEMPTS):
                try:
                    return desk.ask(question, self._limit_s)
                except WorkerDied:
                    desk.stop()
                    desk.start(START_S)
                    if attempt + 1 == ATTEMPTS:
                        raise
        finally:
            self._free.put(desk)

    def pids(self) -> list[int]:
        """The processes that are there."""
        return [each.pid for each in self._all if each.pid is not None]

    def stop(self) -> None:
        for each in self._all:
            each.stop()


class _Process:
    """One desk."""

    def __init__(self, specs: Sequence[ModelSpec], make: MakeServable) -> None:
        self._specs, self._make = specs, make
        self._process: Any = None
        self._pipe: Any = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self, limit_s: float) -> None:
        import multiprocessing

        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_sit, args=(theirs, self._specs, self._make), daemon=True, name="hotlap desk"
        )
        self._process.start()
        atexit.register(self._process.kill)  # it does not hear the SIGTERM that Python itself would send
        theirs.close()
        self._answer(limit_s)

    def ask(self, question: tuple[Any, ...], limit_s: float) -> Any:
        try:
            send(self._pipe, question)
        except OSError as error:
            raise WorkerDied("a process that decodes and finishes has died", remedy="Send it again") from error
        return self._answer(limit_s)

    def _answer(self, limit_s: float) -> Any:
        try:
            if not self._pipe.poll(limit_s):
                raise WorkerDied(f"decoding or finishing took longer than {limit_s:g} s", remedy="Send less at once")
            kind, value = receive(self._pipe)
        except (EOFError, OSError) as error:
            raise WorkerDied("a process that decodes and finishes has died", remedy="Send it again") from error
        if kind == "error":
            raise revive_error(value)
        return value

    def stop(self) -> None:
        if self._process is None:
            return
        self._pipe.close()
        self._process.join(1)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        atexit.unregister(self._process.kill)
        self._process = self._pipe = None


def _decoded(desk: LocalDesk, question: Sequence[Any]) -> Decoded:
    """A request as the model takes it, in shared memory."""
    decoded = desk.decode(*question)
    return dataclasses.replace(decoded, rows=tuple(put(row) for row in decoded.rows))


def _sit(pipe: Any, specs: Sequence[ModelSpec], make: MakeServable) -> None:
    """The process: gets ready, says so, then answers until the pipe closes."""
    os.environ.update(ONE_THREAD)
    leave_signals_to_the_door()
    keep_from_forks(pipe.fileno())
    settle()
    desk: LocalDesk | None = None
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            try:
                if desk is None:
                    desk = LocalDesk({spec.name: make(spec) for spec in specs})
                    desk.start()
                    gc.freeze()  # what is there by now stays: it need not be looked through for every few pictures
                    answer: Any = None
                else:
                    kind, *question = receive(pipe)
                    answer = _decoded(desk, question) if kind == "decode" else desk.finish(*question)
            except (EOFError, BrokenPipeError, ConnectionResetError):
                raise
            except Exception as error:  # noqa: BLE001 - whatever is raised belongs to one picture, and is told
                send(pipe, ("error", freeze_error(told_error(error, "a desk"))))
            else:
                send(pipe, ("ok", answer))
    gc.unfreeze()  # or extensions would complain at the end of what nobody has taken down
