"""The process that trains: takes a job as JSON, tells its progress line by line, gives one answer.

It ends with a checkpoint on SIGTERM, on Ctrl-C and when its parent is gone.
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

from hotlap.base.errors import HotlapError
from hotlap.measure.process import freeze_error
from hotlap.measure.worker import explain
from hotlap.records.codec import decode, encode


def main() -> None:
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    job = json.loads(sys.stdin.readline())
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    threading.Thread(target=_stop_with_parent, args=(stop,), daemon=True).start()
    lock = threading.Lock()

    def say(message: dict[str, Any]) -> None:
        try:
            with lock:
                channel.write(json.dumps(encode(message)) + "\n")
        except BrokenPipeError:
            stop.set()

    try:
        say({"result": train(job, stop, lambda event: say({"event": encode(event)}))})
    except HotlapError as error:
        say({"error": freeze_error(error)})
    except Exception as error:  # noqa: BLE001 - whatever the user's model raised is told to the parent as an answer
        traceback.print_exc()
        say({"error": freeze_error(explain(error, job["config"]))})
    os._exit(0)  # libraries that crash while shutting down must not spoil an answer already given


def _stop_with_parent(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


def train(job: dict[str, Any], stop: threading.Event, emit: Any) -> Any:
    """The outcome of one job: ``config``, ``folder`` and ``resume`` (latest, a file, or nothing)."""
    from hotlap.engine.config import TrainConfig
    from hotlap.engine.loop import Trainer
    from hotlap.engine.parts import pick_device
    from hotlap.targets import load_target

    config: TrainConfig = decode(TrainConfig, job["config"])
    workload = load_target(config.target, config.workload, config.input)
    trainer = Trainer(
        workload, config, Path(job["folder"]), pick_device(config.device), emit=emit, should_stop=stop.is_set
    )
    checkpoint = None
    if job["resume"]:
        checkpoint = trainer.store.load(job["resume"])
        if checkpoint is not None:
            trainer.store.rewind(checkpoint.step)
    return trainer.run(checkpoint)


if __name__ == "__main__":
    main()
