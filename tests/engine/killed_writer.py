"""A process that forks savers, mostly to kill them, and prints what each left behind, a JSON object a line.

It forks rather than starts them: torch is imported once, and a round takes milliseconds.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

import hotlap.engine.checkpoint
from hotlap.engine.checkpoint import CheckpointStore

SIZE = 5_000
SAVE_CODE = {str(Path(hotlap.engine.checkpoint.__file__).with_name(f"{m}.py")) for m in ("checkpoint", "durable")}


def state_of(step: int) -> dict:
    """A state that tells its step in every number."""
    return {"model": {"w": torch.arange(SIZE) + step}, "position": step, "lists": [step, {"twice": 2 * step}]}


def is_state_of(state: dict, step: int) -> bool:
    want = state_of(step)
    return torch.equal(state["model"].pop("w"), want["model"].pop("w")) and state == want


def score_of(step: int) -> float:
    """Best at step 2 of the first three, and again at every seventh."""
    return -step if step % 7 == 0 else abs(step - 2)


def in_a_child(work) -> int:
    """The process id of a fork that does ``work`` and nothing after it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(3)
    return pid


def left_behind(folder: Path) -> dict:
    """What a newcomer finds: both loads, how they compare with their steps, and whatever was warned of."""
    warned: list[str] = []
    num_unfinished = len(list(folder.glob(".*.tmp")))
    store = CheckpointStore(folder, keep=1, warn=warned.append)
    latest, best = store.load(), store.load("best")
    return {
        "step": latest.step if latest else None,
        "whole": latest is None or is_state_of(latest.state, latest.step),
        "best": best.step if best else None,
        "best_whole": best is None or is_state_of(best.state, best.step),
        "warned": warned,
        "num_unfinished": num_unfinished,
        "temporaries": [path.name for path in folder.glob(".*.tmp")],
        "files": sorted(path.name for path in folder.glob("step-*")),
    }


def seconds_a_save(folder: Path) -> float:
    store, start = CheckpointStore(folder), time.perf_counter()
    for step in range(1, 6):
        store.save(state_of(step), step=step)
    return (time.perf_counter() - start) / 5


def kill_at_random(folder: Path, num_rounds: int, seed: int) -> None:
    """Savers in a tight loop, each going on from what the one before left, killed a random while after some saves."""
    chance, start, save_s = random.Random(seed), 1, seconds_a_save(folder / "pace")
    for _ in range(num_rounds):
        reading, writing = os.pipe()

        def save_on(start=start, writing=writing):
            store = CheckpointStore(folder, keep=2)
            for step in range(start, start + 10_000):
                store.save(state_of(step), step=step, score=score_of(step))
                os.write(writing, step.to_bytes(8, "little"))

        pid = in_a_child(save_on)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            told = pipe.read(8 * chance.randrange(4))
            time.sleep(chance.uniform(0, 2 * save_s))
            os.kill(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
            told += pipe.read()
        found = {"returned": int.from_bytes(told[-8:], "little") or start - 1, "killed": os.WIFSIGNALED(status)}
        found |= left_behind(folder)
        start = (found["step"] or 0) + 1
        print(json.dumps(found), flush=True)


def kill_at_every_line(folder: Path) -> None:
    """One save, killed before its first line, its second, ... until it gets through."""
    before = CheckpointStore(folder / "before", keep=1)
    for step in (1, 2, 3):
        before.save(state_of(step), step=step, score=score_of(step))
    for line in range(1, 10_000):
        here = shutil.copytree(before.folder, folder / str(line))

        def die_at_line(here=here, line=line):
            left, num_writes = line, 0

            def trace(frame, event, _):
                nonlocal left, num_writes
                if frame.f_code.co_filename not in SAVE_CODE:
                    return None
                if event == "call" and frame.f_code.co_name == "write":
                    num_writes += 1
                    if num_writes > 3:  # a file half written is the same to its reader at any later byte
                        return None
                if event == "line":
                    left -= 1
                    if left == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                return trace

            store = CheckpointStore(here, keep=1)
            sys.settrace(trace)
            store.save(state_of(7), step=7, score=score_of(7))
            sys.settrace(None)
            os._exit(0)

        status = os.waitpid(in_a_child(die_at_line), 0)[1]
        found = {"killed": os.WIFSIGNALED(status), "exit": os.waitstatus_to_exitcode(status)} | left_behind(here)
        print(json.dumps(found), flush=True)
        if not found["killed"]:
            return


def save_from_two(folder: Path) -> None:
    """Odd steps by one process and even ones by another, at the same time; the best is step 20."""

    def save_every_second(start):
        store = CheckpointStore(folder, keep=2)
        for step in range(start, start + 40, 2):
            store.save(state_of(step), step=step, score=abs(20 - step))
        os._exit(0)

    pids = [in_a_child(lambda start=start: save_every_second(start)) for start in (1, 2)]
    exits = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    print(json.dumps({"exits": exits} | left_behind(folder)), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "random":
        kill_at_random(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    elif sys.argv[1] == "line":
        kill_at_every_line(Path(sys.argv[2]))
    else:
        save_from_two(Path(sys.argv[2]))
