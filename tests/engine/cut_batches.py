"""Batches whose way to the trainer can be cut, as it is when the worker that made them is killed meanwhile."""

from __future__ import annotations

import os
import signal
import threading

from torch.utils.data import get_worker_info

NOT_YET_DEAD_S = 0.2


class Cutter:
    """What happens in the trainer's process to the batches that arrive there; its worker dies if it ``kills``.

    The kill comes a moment after the error: torch, which then looks at its workers, still finds them alive.
    """

    def __init__(self) -> None:
        self.at, self.error, self.kills = -1, ConnectionResetError(104, "Connection reset by peer"), True

    def arrived(self, worker: int) -> None:
        self.at -= 1
        if self.at == 0:
            if self.kills:
                threading.Timer(NOT_YET_DEAD_S, os.kill, (worker, signal.SIGKILL)).start()
            raise self.error


CUTTER = Cutter()


class Handed(tuple):
    """A batch that a worker hands over; it arrives as a plain tuple, or not."""

    def __reduce__(self):
        return arrive, (tuple(self), os.getpid())


def arrive(batch: tuple, worker: int) -> tuple:
    CUTTER.arrived(worker)
    return batch


def handed(batch):
    """For collate: the batch as it is where there is no worker."""
    return Handed(batch) if get_worker_info() is not None else batch
