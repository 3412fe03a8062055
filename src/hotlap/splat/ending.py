"""Ctrl-C and SIGTERM while a training runs: the step ends and is saved, where they would have cost what was learned."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hotlap.splat.trainer import Trainer

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def ends_after_its_step(trainer: Trainer) -> Iterator[None]:
    """While it lasts, the first such signal lets the training end after its step, and the second acts as it did before.

    Processes that train together would end at different steps, and wait for one another: they are left as they are, and
    so are signals that the process was told to ignore, as a shell's background jobs are.
    """
    if trainer.team.size > 1 or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    replaced = [number for number, handler in before.items() if callable(handler)]

    def restore() -> None:
        for number in replaced:
            signal.signal(number, before[number])

    def end(number: int, frame: Any) -> None:
        restore()
        trainer.ends = True

    for number in replaced:
        signal.signal(number, end)
    try:
        yield
    finally:
        restore()
