"""The process that trains: takes a job as JSON, tells its progress line by line, gives one answer.

It ends with a checkpoint on SIGTERM, on Ctrl-C and when its parent is gone; at once while there is nothing to save.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from hotlap.base import events
from hotlap.base.channel import take_stdout
from hotlap.base.errors import HotlapError, OutOfMemory, TargetError
from hotlap.base.events import Emit
from hotlap.base.raised import first_line, is_lonely, lonely_value, their_line
from hotlap.device.memory import is_out_of_memory
from hotlap.engine.alone import alone_in
from hotlap.measure.process import freeze_error
from hotlap.records.codec import decode, encode

STOPS = (signal.SIGTERM, signal.SIGINT)


def main() -> None:
    channel = take_stdout()
    # A target that hangs while it is loaded may hang in C, where no handler of Python's is ever called.
    for number in STOPS:
        signal.signal(number, signal.SIG_DFL)
    job = json.loads(sys.stdin.readline())
    stop = threading.Event()
    threading.Thread(target=_stop_with_parent, daemon=True).start()

    def say(message: dict[str, Any]) -> None:
        try:
            channel.write(json.dumps(encode(message)) + "\n")
        except BrokenPipeError:
            stop.set()

    try:
        say({"result": train(job, stop, lambda event: say({"event": event}))})
    except HotlapError as error:
        say({"error": freeze_error(error)})
    except Exception as error:  # noqa: BLE001 - whatever the user's model raised is told to the parent as an answer
        traceback.print_exc()
        say({"error": freeze_error(explain(error, job["config"]["target"]))})
    os._exit(0)  # libraries that crash while shutting down must not spoil an answer already given


def _stop_with_parent() -> None:
    # Not sys.stdin.read: it holds a lock that a forked worker, which closes its stdin, would wait for without end.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def train(job: dict[str, Any], stop: threading.Event, emit: Emit) -> Any:
    """The outcome of one job: ``config``, ``folder`` and ``resume`` (latest, a file, or nothing)."""
    from hotlap.engine.config import TrainConfig
    from hotlap.engine.loop import Trainer
    from hotlap.engine.parts import pick_device
    from hotlap.targets import load_target

    config: TrainConfig = decode(TrainConfig, job["config"])
    folder = Path(job["folder"])
    with alone_in(folder, say=lambda text: emit(events.warn(text))):
        workload = load_target(config.target, config.workload, config.input)
        device = pick_device(config.device)
        trainer = Trainer(workload, config, folder, device, emit=emit, should_stop=stop.is_set)
        checkpoint = trainer.store.load(job["resume"]) if job["resume"] else None
        if checkpoint is not None:
            trainer.store.rewind(checkpoint.step)
        for number in STOPS:
            signal.signal(number, lambda *_: stop.set())
        return trainer.run(checkpoint)


def explain(error: Exception, target: str) -> HotlapError:
    """An exception of the user's model or data as one of ours, with the line of theirs that it passed last."""
    said, where = first_line(error), their_line(error)
    if is_out_of_memory(error):
        return OutOfMemory(
            f"memory ran out outside the training step of {target!r}: {said} {where}",
            remedy="Take a smaller --batch, or a smaller model; --resume goes on from the last checkpoint",
        )
    if is_lonely(error):
        return lonely_value(target, error)
    return TargetError(
        f"target {target!r} raised {type(error).__name__} while it was trained: {said} {where}",
        remedy="output.txt in the run's folder has the whole trace; --resume goes on from the last checkpoint",
    )


if __name__ == "__main__":
    main()
