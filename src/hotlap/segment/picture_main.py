"""The processes that read pictures or work out results: one imports what is needed, the others are forks of it.

The first must stay what a fork can copy: one thread, no CUDA. It says ``ready`` through its socket, or why it cannot
serve, and then forks for every descriptor that it is sent. A fork is told its work and does it, one file or picture at
a time, until its pipe closes.
"""

from __future__ import annotations

import contextlib
import dataclasses
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
from hotlap.kernels.unfilter import op as unfilter_op
from hotlap.measure.beside import settle
from hotlap.measure.nursery_main import shed_threads, unfit
from hotlap.measure.passing import Shelf, Window, receive, send
from hotlap.measure.process import freeze_error
from hotlap.segment.finishing import Finishing
from hotlap.segment.normalise import normalise
from hotlap.segment.predict import segment_maps
from hotlap.segment.reading import Loaded, Reading
from hotlap.segment.targets import MAPS

READY = "ready"
OK, LAST, END, ERROR, RAISED = "ok", "last", "end", "error", "raised"
"""What an answer is: a value, one that nothing follows, the end of several, an error of ours, or any other."""
_ELSEWHERE = np.empty((0, 0, 3), np.uint8)
"""In the place of pixels that travel in shared memory."""


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
            work_for(descriptors[0])
        os.close(descriptors[0])
    control.close()
    with contextlib.suppress(ChildProcessError):
        os.wait()  # with SIGCHLD ignored: until none is left
    os._exit(0)  # at once: what Python would do now takes a quarter of a second


def warm_up() -> None:
    """Compiles what reading and results need, or loads what was compiled before."""
    random = np.random.default_rng(0)
    maps = random.random((len(MAPS), 32, 32), np.float32)
    for names in (MAPS, MAPS[:1]):  # other steps are taken where only the foreground is known
        segment_maps(maps[: len(names)], names)
    for kind in (np.uint8, np.uint16):
        normalise(random.integers(200, size=(32, 32, 3), dtype=kind))
    unfilter_op.warm_up()
    import PIL.Image

    PIL.Image.init()


def work_for(descriptor: int) -> None:
    """Never returns: one question after the other, until the pipe closes."""
    try:
        with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
            pipe, shelf, window = Connection(descriptor), Shelf(), Window()
            work: Finishing | Reading = receive(pipe)
            answer: tuple[str, Any]
            while True:
                question = receive(pipe, window)
                try:
                    if isinstance(work, Reading):
                        answer = _read(pipe, shelf, work, *question)
                    else:
                        answer = OK, _finish(work, *question)
                except (EOFError, BrokenPipeError, ConnectionResetError):
                    raise
                except HotlapError as error:
                    answer = ERROR, freeze_error(error)
                except Exception as error:  # noqa: BLE001 - the caller raises it
                    answer = RAISED, _portable(error)
                send(pipe, answer)
    finally:
        os._exit(0)  # whatever happened, a fork must not go on with what its parent does


def _finish(work: Finishing, facts: Any, maps: torch.Tensor, picture: torch.Tensor | None) -> Any:
    return work.one(facts, maps.numpy(), None if picture is None else picture.numpy())


def _read(pipe: Any, shelf: Shelf, work: Reading, *place: Any) -> tuple[str, Any]:
    """Tells what is in a file from a place on, each when it is asked for; pixels lie on the shelf until then.

    Returns the end, which for a file with one picture is that picture: to be asked once more takes a thread's turn.
    """
    for item in work.items(*place):
        picture = None
        if isinstance(item, Loaded):
            picture, item = shelf.hold("picture", item.picture), dataclasses.replace(item, picture=_ELSEWHERE)
            if item.num_pages == 1:
                return LAST, (item, picture)
        send(pipe, (OK, (item, picture)))
        receive(pipe)
    return END, None


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
