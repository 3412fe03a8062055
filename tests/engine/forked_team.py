"""Runs a body in several processes that are one team, on this machine's CPU."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import sys
import time
import traceback

import torch
import torch._dynamo  # what each child would import otherwise
import torch.distributed.fsdp

TIMEOUT_S = 60.0


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def in_team(body, *arguments, size=2, timeout_s=TIMEOUT_S, wait_s=30.0):
    """What ``body(team, *arguments)`` gave in each process: a value, or the exception it raised.

    They wait for one another for ``wait_s``. Forked, so that nothing is imported again. A process that is killed gives
    its exit code; none outlives the call.
    """
    port = free_port()
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    children = [
        context.Process(target=_child, args=(body, arguments, rank, size, port, wait_s, pipe[1]), daemon=False)
        for rank, pipe in enumerate(pipes)
    ]
    for child in children:
        child.start()
    for _, write in pipes:
        write.close()
    deadline = time.monotonic() + timeout_s
    try:
        return [_answer(child, read, deadline) for child, (read, _) in zip(children, pipes, strict=True)]
    finally:
        for child in children:
            child.kill()
            child.join()


def _answer(child, read, deadline):
    if not read.poll(max(0.0, deadline - time.monotonic())):
        raise TimeoutError(f"process {child.pid} of the team still runs: the team hangs")
    try:
        return pickle.loads(read.recv_bytes())
    except EOFError:
        child.join(5)
        return child.exitcode


def _child(body, arguments, rank, size, port, wait_s, write):
    signal.alarm(0)
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size),
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}  # fmt: skip
    from hotlap.engine.distributed import ProcessTeam
    from hotlap.engine.place import find_place

    try:
        place = find_place()
        assert place is not None
        answer = body(ProcessTeam(place, torch.device("cpu"), timeout_s=wait_s), *arguments)
    except BaseException as error:
        traceback.print_exc()
        answer = error
        answer.__traceback__ = answer.__cause__ = answer.__context__ = None
    write.send_bytes(_pickled(answer))
    write.close()
    sys.stderr.flush()
    os._exit(0)


def _pickled(answer):
    """Plain bytes: torch's own way through a pipe needs the sender to stay alive."""
    try:
        data = pickle.dumps(answer)
        pickle.loads(data)
    except Exception as error:
        return pickle.dumps(RuntimeError(f"{type(answer).__name__}: {answer} ({error})"))
    return data
