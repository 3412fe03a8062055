"""A parent that outlives its training: it sees who died and why, and starts again from the last checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from hotlap.base import events
from hotlap.base.errors import HotlapError, UsageError, WorkerDied
from hotlap.base.events import Emit, Event
from hotlap.base.process_group import kill_group
from hotlap.device.host import oom_kill_count
from hotlap.engine.child import STOPS
from hotlap.engine.config import CHECKPOINTS, TrainConfig
from hotlap.measure.process import MARK, read_messages, revive_error, worker_environment
from hotlap.records.codec import decode, encode

CHILD = "hotlap.engine.child"
OUTPUT = "output.txt"
"""What the target prints while it is trained, and the trace of what it raises; in the run's folder."""
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
        emit(events.finish("train"))
        fruitless = fruitless + 1 if _newest(folder) == newest else 0
        if len(restarts) >= config.restarts or fruitless >= 3:
            raise _give_up(answer, restarts, fruitless)
        before, config = config, _with_less(config) if answer.is_memory else config
        if not fruitless or resume in (
            "",
            "latest",
        ):  # else it may not have got as far as to take the file it was given
            resume = "latest" if _newest(folder) else ""
        since = f"from step {_newest(folder)}" if resume == "latest" else f"from {resume or 'the beginning'}"
        told = f", now with workers = {config.workers}, prefetch = {config.prefetch}" if config != before else ""
        restarts.append(answer.what)
        emit(events.warn(f"{answer.what}; starting again {since}{told}"))


def _newest(folder: Path) -> int:
    """The step of the newest checkpoint; 0 when there is none."""
    names = (folder / CHECKPOINTS).glob("step-*.pt")
    return max((int(path.name.split("-")[1]) for path in names), default=0)


def _with_less(config: TrainConfig) -> TrainConfig:
    """Half the workers, each with one batch in hand, or none where their number was left open."""
    if config.workers is None:
        return dataclasses.replace(config, workers=0, prefetch=1)
    if config.workers == 0:
        return config
    return dataclasses.replace(config, workers=config.workers // 2, prefetch=1)


def _give_up(death: Death, restarts: list[str], fruitless: int) -> HotlapError:
    tries = f"after {len(restarts)} restarts" + (" without a new checkpoint" if fruitless >= 3 else "")
    if death.is_memory:
        return Killed(
            f"{death.what}, {tries}",
            remedy="Give the container more memory or /dev/shm, or take a smaller --batch; then go on with --resume",
        )
    return WorkerDied(f"{death.what}, {tries}", remedy="'hotlap doctor' checks the machine; then go on with --resume")


def _one_start(config: TrainConfig, folder: Path, resume: str, emit: Emit) -> dict[str, Any] | Death:
    """One process's outcome, or how it died; raises what it raised, or that it was told to stop and did not answer."""
    kills_before = oom_kill_count()
    emit(events.start("train", None, f"loading {config.target}"))
    job = {"config": encode(config), "folder": str(folder), "resume": resume}
    with open(folder / OUTPUT, "a+b") as output:
        begin = output.seek(0, os.SEEK_END)
        with subprocess.Popen(
            [sys.executable, "-m", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            env=worker_environment(),
            # Ctrl-C in a terminal reaches this process alone, which then asks; workers of the loader would die of it.
            start_new_session=True,
        ) as child:
            answer, told_to_stop = _listen(child, job, emit)
        output.seek(max(begin, output.seek(0, os.SEEK_END) - 2000))
        tail = output.read().decode(errors="replace").strip()
    if answer is not None and "result" in answer:
        outcome: dict[str, Any] = answer["result"]
        return outcome
    if answer is not None and answer["error"]["type"] not in RESTARTED_ERRORS:
        raise revive_error(answer["error"])
    if told_to_stop or (answer is None and -child.returncode in STOPS):
        raise KeyboardInterrupt
    if answer is None:
        return explain_death(child.returncode, kills_before, oom_kill_count(), tail)
    return Death(answer["error"]["what"], is_memory=answer["error"]["type"] == "LoaderDied")


def _listen(child: subprocess.Popen[str], job: dict[str, Any], emit: Emit) -> tuple[dict[str, Any] | None, bool]:
    """The child's last word, and whether it was told to stop: by Ctrl-C or SIGTERM, after which it is waited for.

    Its stdin stays open meanwhile; when this process dies, the child sees the end of it.
    """
    assert child.stdin is not None and child.stdout is not None
    stdout, told_to_stop, answer = child.stdout, False, None
    is_training = False

    def heard(event: Event) -> None:
        nonlocal is_training
        is_training |= event.kind == "start"
        emit(event)

    try:
        try:
            if _send(child.stdin, job):
                answer = _read(stdout, heard)
        except KeyboardInterrupt:
            told_to_stop = True
            if is_training:  # a target that is being loaded has nothing to save, and ends at once
                emit(events.note("stopping after this step; a checkpoint is being saved (again to stop at once)"))
            child.send_signal(signal.SIGTERM)
            answer = _read_within(PATIENCE_S, lambda: _read(stdout, emit), child)
        except Exception:  # who listens has failed, as a terminal that is gone does; the training can still be saved
            child.send_signal(signal.SIGTERM)
            _read_within(PATIENCE_S, lambda: _read(stdout, events.ignore), child)
            raise
        child.wait()
    except BaseException:
        child.kill()
        child.wait()
        kill_group(child.pid)
        raise
    if answer is None:
        kill_group(child.pid)  # a loader's workers, if it has died without them
    return answer, told_to_stop


def _send(stdin: IO[str], job: dict[str, Any]) -> bool:
    """Gives a process its job; False when it died before it had read it."""
    try:
        stdin.write(json.dumps(job) + "\n")
        stdin.flush()
    except BrokenPipeError:
        with contextlib.suppress(BrokenPipeError):
            stdin.close()
        return False
    return True


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
    for message in read_messages(stream):
        if "event" in message:
            emit(decode(Event, message["event"]))
        else:
            return message
    return None


def explain_death(code: int, kills_before: int | None, kills_after: int | None, tail: str) -> Death:
    """Who killed a training that ended with ``code`` and no answer."""
    counted = kills_before is not None and kills_after is not None and kills_after > kills_before
    last = f"; its last words: {tail.splitlines()[-1]}" if tail else ""
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
    return Death(f"the training process died {how}{last}", is_memory=False)
