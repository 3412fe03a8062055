"""A parent that outlives its training: it sees who died and why, and starts again from the last checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from hotlap.base import events
from hotlap.base.errors import HotlapError, UsageError, WorkerDied
from hotlap.base.events import Emit, Event
from hotlap.device.host import oom_kill_count
from hotlap.engine.config import CHECKPOINTS, TrainConfig
from hotlap.measure.process import MARK, revive_error, worker_environment
from hotlap.records.codec import decode, encode

CHILD = "hotlap.engine.child"
RESTARTED_ERRORS = ("LoaderDied", "StepLost")
"""What a training may tell before it ends and is then worth another start from its last checkpoint."""
PATIENCE_S = 120.0
"""How long a training that is told to stop may take for its last step and checkpoint."""
SIGBUS, SIGKILL = -signal.SIGBUS, -signal.SIGKILL


class Killed(HotlapError):
    """The training was killed from outside more often than it may be started again."""

    exit_code = 137


@dataclasses.dataclass(frozen=True)
class Death:
    """Why a training ended without coming to its end."""

    what: str
    is_memory: bool
    """Host memory or /dev/shm: fewer workers and less read ahead would help."""


@dataclasses.dataclass
class Supervised:
    """What came of a training, however many starts it took."""

    outcome: dict[str, Any]
    restarts: list[str]
    """Why it was started again, each time."""
    config: TrainConfig
    """As it was at the end: with fewer workers, if memory was short."""


def supervise(config: TrainConfig, folder: Path, resume: str, emit: Emit) -> Supervised:
    """Trains in a process of its own until it comes to an end; ``resume`` is empty, latest or a checkpoint file."""
    if MARK in os.environ:
        raise UsageError(
            "hotlap was called while hotlap was loading it as a target",
            remedy='Put the call under if __name__ == "__main__": in a script that trains itself',
        )
    restarts: list[str] = []
    fruitless = 0
    while True:
        newest = _newest(folder)
        answer = _one_start(config, folder, resume, emit)
        if isinstance(answer, dict):
            return Supervised(answer, restarts, config)
        fruitless = fruitless + 1 if _newest(folder) == newest else 0
        if len(restarts) >= config.restarts or fruitless >= 3:
            raise _give_up(answer, restarts, fruitless)
        config = _with_less(config) if answer.is_memory else config
        resume = "latest" if _newest(folder) else ""
        since = f"from step {_newest(folder)}" if resume else "from the beginning"
        told = f", now with workers = {config.workers or 0}, prefetch = {config.prefetch}" if answer.is_memory else ""
        restarts.append(answer.what)
        emit(events.warn(f"{answer.what}; starting again {since}{told}"))


def _newest(folder: Path) -> int:
    """The step of the newest checkpoint; 0 when there is none."""
    names = (folder / CHECKPOINTS).glob("step-*.pt")
    return max((int(path.name.split("-")[1]) for path in names), default=0)


def _with_less(config: TrainConfig) -> TrainConfig:
    return dataclasses.replace(config, workers=(config.workers or 0) // 2, prefetch=1)


def _give_up(death: Death, restarts: list[str], fruitless: int) -> HotlapError:
    tries = f"after {len(restarts)} restarts" + (" without a new checkpoint" if fruitless >= 3 else "")
    if death.is_memory:
        return Killed(
            f"{death.what}, {tries}",
            remedy="Give the container more memory or /dev/shm, or take a smaller --batch; then go on with --resume",
        )
    return WorkerDied(f"{death.what}, {tries}", remedy="'hotlap doctor' checks the machine; then go on with --resume")


def _one_start(config: TrainConfig, folder: Path, resume: str, emit: Emit) -> dict[str, Any] | Death:
    """One process's outcome, or how it died; raises what it raised."""
    kills_before = oom_kill_count()
    job = {"config": encode(config), "folder": str(folder), "resume": resume}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
        child = subprocess.Popen(
            [sys.executable, "-m", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=worker_environment(),
        )
        with _ended(child):
            answer = _listen(child, job, emit)
        stderr.seek(0)
        tail = stderr.read()[-2000:].strip()
    if answer is None:
        return explain_death(child.returncode, kills_before, oom_kill_count(), tail)
    if "error" in answer:
        error = revive_error(answer["error"])
        if answer["error"]["type"] not in RESTARTED_ERRORS:
            raise error
        return Death(error.what, is_memory=answer["error"]["type"] == "LoaderDied")
    outcome: dict[str, Any] = answer["result"]
    return outcome


@contextlib.contextmanager
def _ended(child: subprocess.Popen[str]) -> Any:
    """Whatever happens to this process, the child is told to stop, given time for a checkpoint, and waited for."""
    try:
        yield
        child.wait()
    except BaseException:
        child.kill()
        child.wait()
        raise


def _listen(child: subprocess.Popen[str], job: dict[str, Any], emit: Emit) -> dict[str, Any] | None:
    """The child's last word. Ctrl-C and SIGTERM are passed on, and its checkpoint is waited for."""
    assert child.stdin is not None and child.stdout is not None
    stdin, stdout = child.stdin, child.stdout
    try:
        stdin.write(json.dumps(job) + "\n")
        stdin.flush()
    except BrokenPipeError:
        return None
    try:
        return _read(stdout, emit)
    except KeyboardInterrupt:
        emit(events.note("stopping after this step; a checkpoint is being saved (again to stop at once)"))
        child.send_signal(signal.SIGTERM)
        return _read_within(PATIENCE_S, lambda: _read(stdout, emit), child)


def _read_within(seconds: float, read: Callable[[], Any], child: subprocess.Popen[str]) -> Any:
    """What ``read`` gives; a child that takes longer is killed, which ends the reading."""
    alarm = threading.Timer(seconds, child.kill)
    alarm.daemon = True
    alarm.start()
    try:
        return read()
    finally:
        alarm.cancel()


def _read(stream: IO[str], emit: Emit) -> dict[str, Any] | None:
    for line in stream:
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if not isinstance(message, dict):
            continue
        if "event" in message:
            emit(decode(Event, message["event"]))
        else:
            return message
    return None


def explain_death(code: int, kills_before: int | None, kills_after: int | None, tail: str) -> Death:
    """Who killed a training that ended with ``code`` and no answer."""
    counted = kills_before is not None and kills_after is not None and kills_after > kills_before
    last = f" Its last words: {tail.splitlines()[-1]}" if tail else ""
    if code in (SIGKILL, 137):
        why = (
            f"the kernel killed it for memory (oom_kill {kills_before} -> {kills_after})"
            if counted
            else "it was killed (SIGKILL), which is what the kernel does when host memory runs out"
        )
        return Death(f"the training process died: {why}", is_memory=True)
    if code in (SIGBUS, 135):
        return Death("the training process died of a bus error: /dev/shm is full", is_memory=True)
    how = f"of {signal.Signals(-code).name}" if code < 0 else f"with exit code {code} and no answer"
    return Death(f"the training process died {how}.{last}", is_memory=False)
