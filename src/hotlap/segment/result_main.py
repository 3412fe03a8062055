"""The processes that work out results: one imports all that is needed, once, and each of the others is a fork of it.

The first must stay what a fork can copy: one thread, no CUDA. It says ``ready`` through its socket, or why it cannot
serve, and then forks for every descriptor that it is sent. A fork answers one picture at a time until its pipe closes.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import socket
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from hotlap.base.errors import HotlapError
from hotlap.measure.beside import settle
from hotlap.measure.nursery_main import shed_threads, unfit
from hotlap.measure.passing import receive, send
from hotlap.measure.process import freeze_error
from hotlap.segment.finishing import Finishing
from hotlap.segment.predict import segment_maps
from hotlap.segment.targets import MAPS

READY = "ready"


def main() -> None:
    """Gets ready, says so, and forks until the caller closes its end; then ends after the last fork."""
    control = socket.socket(fileno=int(sys.argv[1]))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # sent to all of a run at once; its main process decides
    settle()
    warm_up()
    shed_threads()
    control.send((unfit() or READY).encode())
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks that end leave nothing behind
    gc.collect()
    gc.freeze()
    while descriptors := socket.recv_fds(control, 16, 1)[1]:
        if os.fork() == 0:
            control.close()
            answer_pictures(descriptors[0])
        os.close(descriptors[0])
    control.close()
    with contextlib.suppress(ChildProcessError):
        os.wait()  # with SIGCHLD ignored: until none is left
    os._exit(0)  # at once: what Python would do now takes a quarter of a second


def warm_up() -> None:
    """Compiles what results need, or loads what was compiled before."""
    maps = np.random.default_rng(0).random((len(MAPS), 32, 32), np.float32)
    for names in (MAPS, MAPS[:1]):  # other steps are taken where only the foreground is known
        segment_maps(maps[: len(names)], names)


def answer_pictures(descriptor: int) -> None:
    """Never returns: one picture after the other, until the pipe closes."""
    try:
        with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
            pipe = Connection(descriptor)
            work: Finishing = receive(pipe)
            while True:
                send(pipe, _answer(work, *receive(pipe)))
    finally:
        os._exit(0)  # whatever happened, a fork must not go on with what its parent does


def _answer(work: Finishing, facts: Any, maps: torch.Tensor, picture: torch.Tensor | None) -> tuple[str, Any]:
    try:
        return "ok", work.one(facts, maps.numpy(), None if picture is None else picture.numpy())
    except HotlapError as error:
        return "error", freeze_error(error)
    except Exception as error:  # noqa: BLE001 - the caller raises it
        return "raised", _portable(error)


def _portable(error: Exception) -> Exception:
    """The error with the way to it, or, where it cannot be sent, one with its words."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - it may do anything when it is made again
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


if __name__ == "__main__":
    main()
