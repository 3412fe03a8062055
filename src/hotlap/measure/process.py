"""Fresh processes: a job goes in as JSON, progress comes out line by line, and any death becomes a clear error."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any, Protocol

import hotlap
from hotlap.base import bytecode, errors
from hotlap.base.errors import HotlapError, OutOfMemory, UsageError, WorkerDied
from hotlap.base.process_group import Leader

WORKER = "hotlap.measure.worker"
MARK = "HOTLAP_IS_MEASURING"
"""Set in a worker's environment, so that a script which measures itself cannot start workers without end."""
ON_CARD = "HOTLAP_CALLERS_ON_CARD"
"""How many of the processes that wait for this one hold a CUDA context themselves: a notebook, a test runner."""
Listen = Callable[[str, float, float], None]
"""Hears what is being done, how much of it is done, and out of how much."""


def quiet(text: str, done: float, total: float) -> None:
    """The listener of a caller who does not want to hear."""


class NurseryGone(Exception):
    """A nursery cannot start a worker, or died with it; the job needs a fresh process. Never leaves this room."""


class Worker(Protocol):
    """A process with a conversation: a Popen, or what a nursery forks. What it started itself ends with it."""

    stdin: IO[str] | None
    stdout: IO[str] | None

    def kill(self) -> None: ...

    def wait(self) -> int: ...


class Starter(Protocol):
    """What starts workers faster than a fresh interpreter does: see :class:`hotlap.measure.nursery.Nursery`."""

    def start(self, stderr: IO[str]) -> Any: ...


UNTIMED = ("describe", "fingerprint", "footprint", "gate")
"""Jobs whose answer does not depend on how their process came into being."""
_LENT: ContextVar[Starter | None] = ContextVar("lent nursery", default=None)


@contextlib.contextmanager
def lent(nursery: Starter) -> Iterator[None]:
    """Lets untimed jobs inside the block be forked by ``nursery``: several tools in turn then import torch once."""
    token = _LENT.set(nursery)
    try:
        yield
    finally:
        _LENT.reset(token)


def lent_nursery() -> Starter | None:
    """The nursery that a caller has lent for its block, if any."""
    return _LENT.get()


def run_job(
    job: dict[str, Any],
    *,
    timeout_s: float,
    listen: Listen = quiet,
    nursery: Starter | None = None,
    each_word: bool = False,
) -> Any:
    """The result of ``job`` from a process of its own; raises what the worker raised, or WorkerDied.

    The process is a fresh interpreter, or forked by ``nursery``, as long as that one can. Without one, a job that times
    nothing is forked by the nursery that was lent, if there is one. With ``each_word`` the time limit begins anew
    whenever the process tells of its progress.
    """
    nursery = nursery or (_LENT.get() if job.get("job") in UNTIMED else None)
    if MARK in os.environ:
        raise UsageError(
            "hotlap was called while hotlap was loading it as a target",
            remedy='Put the call under if __name__ == "__main__": in a script that measures itself',
        )
    if nursery is not None:
        try:
            kept = getattr(nursery, "kept", "")
            return _run(nursery.start, {**job, "kept": kept}, timeout_s, listen, each_word)
        except NurseryGone:
            pass  # it has noted why
    return _run(_start_fresh, job, timeout_s, listen, each_word)


def _start_fresh(stderr: IO[str]) -> Worker:
    return Leader(
        [sys.executable, "-m", WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env=worker_environment(),
        process_group=0,  # Ctrl-C in a terminal reaches the caller, who ends it
    )


def _run(
    start: Callable[[IO[str]], Worker], job: dict[str, Any], timeout_s: float, listen: Listen, each_word: bool
) -> Any:
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
        worker = start(stderr)
        late = threading.Event()

        def stop() -> None:
            late.set()  # first, so that the death it causes is never taken for another
            worker.kill()

        alarm = _alarm(timeout_s, stop)

        def heard(text: str, done: float, total: float) -> None:
            nonlocal alarm
            if each_word:
                alarm.cancel()
                alarm = _alarm(timeout_s, stop)
                alarm.start()
            listen(text, done, total)

        try:
            alarm.start()
            answer = _converse(worker, job, heard)
            code = worker.wait()
        except BaseException:
            worker.kill()
            with contextlib.suppress(NurseryGone):
                worker.wait()
            raise
        finally:
            alarm.cancel()
            _close(worker)
        stderr.seek(0)
        tail = stderr.read()[-2000:].strip()
    if answer is None:
        raise _death(job, code, tail, timeout_s if late.is_set() else None)
    if "error" in answer:
        raise revive_error(answer["error"])
    return answer["result"]


def _alarm(seconds: float, ring: Callable[[], None]) -> threading.Timer:
    alarm = threading.Timer(seconds, ring)
    alarm.daemon = True  # an interruption while it starts must not keep this process alive until it rings
    return alarm


def _close(worker: Worker) -> None:
    """Gives back the pipes of a worker that has ended."""
    for stream in (worker.stdin, worker.stdout):
        with contextlib.suppress(BrokenPipeError):  # it left without reading its job
            if stream is not None:
                stream.close()


def worker_environment() -> dict[str, str]:
    """The user's environment, with this very hotlap importable even where it is not installed, and bytecode kept."""
    here = str(Path(hotlap.__file__).resolve().parents[1])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    ours = {"PYTHONPATH": os.pathsep.join(paths), MARK: "1", ON_CARD: str(num_on_card())}
    return {**os.environ, **bytecode.keeping(os.environ), **ours}


def num_on_card() -> int:
    """How many of this process and of its callers, who only wait for it, a driver counts as processes on its cards."""
    torch = sys.modules.get("torch")
    holds_context = torch is not None and bool(torch.cuda.is_initialized())
    return int(os.environ.get(ON_CARD, 0)) + holds_context


def _converse(worker: Worker, job: dict[str, Any], listen: Listen) -> dict[str, Any] | None:
    """The worker's last word. Its stdin stays open meanwhile: when this process dies, the worker sees the end of it."""
    assert worker.stdin is not None and worker.stdout is not None
    answer = None
    try:
        worker.stdin.write(json.dumps(job) + "\n")
        worker.stdin.flush()
        answer = _read_answer(worker.stdout, listen)
        worker.stdin.close()
    except BrokenPipeError:
        pass  # it died before it read its job; the caller reports how
    return answer


def read_messages(stream: IO[str]) -> Iterator[dict[str, Any]]:
    """What a process of ours says, a message a line; whatever else got into its pipe is passed over."""
    for line in stream:
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if isinstance(message, dict):
            yield message


def _read_answer(stream: IO[str], listen: Listen) -> dict[str, Any] | None:
    for message in read_messages(stream):
        if "progress" in message:
            listen(message["progress"], message["done"], message["total"])
        else:
            return message
    return None


def _death(job: dict[str, Any], code: int, tail: str, timeout_s: float | None) -> HotlapError:
    doing = f"the {job.get('job', '?')} process for {job.get('target', '?')!r}"
    last = f" Its last words: {tail.splitlines()[-1]}" if tail else ""
    if timeout_s is not None:
        return WorkerDied(
            f"{doing} was stopped after timeout_s = {timeout_s:g}",
            remedy=f"Give it longer with --timeout-s, or make the work smaller with --batch.{last}",
        )
    if code in (-signal.SIGKILL, 137):
        return OutOfMemory(
            f"{doing} was killed (SIGKILL), which is what the kernel does when host memory runs out",
            remedy=f"Take a smaller --batch, or give the container more memory.{last}",
        )
    if code < 0:
        name = signal.Signals(-code).name
        return WorkerDied(f"{doing} died of {name}", remedy=f"'hotlap doctor' checks the libraries it used.{last}")
    return WorkerDied(
        f"{doing} ended with exit code {code} and no answer", remedy=f"'hotlap doctor' may tell why.{last}"
    )


def freeze_error(error: HotlapError) -> dict[str, str]:
    """An error as JSON; ``kind`` is the nearest one of the tree, which decides the exit code wherever it arrives."""
    kind = next(cls.__name__ for cls in type(error).__mro__ if cls.__module__ == errors.__name__)
    said = {"what": error.what, "expected": error.expected, "remedy": error.remedy}
    return {"type": type(error).__name__, "kind": kind, **said}


def revive_error(data: dict[str, str]) -> HotlapError:
    """The error that a worker froze."""
    kind = getattr(errors, data.get("kind", data["type"]), HotlapError)
    error: HotlapError = kind(data["what"], expected=data["expected"], remedy=data["remedy"])
    return error
