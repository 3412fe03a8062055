"""A process that forks trainings and kills them, starts them again until they end, and prints what became of each.

It forks rather than starts them: torch is imported once, and a training of 42 steps takes a fraction of a second.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tiny_workload import Tiny

from hotlap.engine.checkpoint import CheckpointStore
from hotlap.engine.config import CHECKPOINTS, TrainConfig
from hotlap.engine.loop import Trainer

SETTINGS = {
    "epochs": 6, "save_every": 3, "log_every": 4, "schedule": "cosine", "warmup": 5, "ema": 0.9, "clip_norm": 1.0,
    "lr": 0.01, "on_bad_sample": "skip", "keep": 2, "device": "cpu",
}  # fmt: skip
NUM_STEPS = 42
PHASES = ("start", "step", "save", "evaluate", "between", "over")
AMBUSHED = {"save": 14, "evaluate": 6, "step": 42}
AMBUSHES = [(name, times, delay_s) for delay_s in (0.0, 0.001, 0.004) for name, times in AMBUSHED.items()]
"""A phase, how often it begins, and how long after that it is struck at most. Taken in turn, and at once in the first
three: how long a phase lasts hangs on the machine, and a campaign must have struck each."""


def train(folder: Path, phase: mmap.mmap | bytearray, workers: int, ambush: Ambush | None = None) -> None:
    """One start of a training: from its newest checkpoint, if there is one; ``phase`` tells what it is doing."""
    phase[0] = PHASES.index("start")
    config = TrainConfig(target="tiny", workers=workers, **SETTINGS)
    trainer = Trainer(Tiny(bad=(7,), bad_eval=(3,)), config, folder, torch.device("cpu"))
    for method, name in (("_one", "step"), ("_save", "save"), ("_evaluate", "evaluate")):
        setattr(trainer, method, marked(getattr(trainer, method), phase, name, ambush))
    checkpoint = trainer.store.load()
    phase[0] = PHASES.index("between")
    trainer.run(checkpoint)
    phase[0] = PHASES.index("over")


@dataclass
class Ambush:
    """Kills the process it is in, a little after a phase has begun for the n-th time."""

    phase: str
    left: int
    delay_s: float

    def entered(self, phase: str) -> None:
        self.left -= phase == self.phase
        if self.left == 0 and phase == self.phase:
            if self.delay_s:
                threading.Timer(self.delay_s, _kill).start()
            else:
                _kill()


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def marked(method, phase, name: str, ambush: Ambush | None):
    """``method``, with ``phase`` telling when it is at work."""

    def call(*arguments):
        before, phase[0] = phase[0], PHASES.index(name)
        if ambush is not None:
            ambush.entered(name)
        try:
            return method(*arguments)
        finally:
            phase[0] = before

    return call


def start(folder: Path, phase: mmap.mmap, workers: int, ambush: Ambush | None = None) -> int:
    phase[0] = PHASES.index("start")
    pid = os.fork()
    if pid == 0:
        code = 3
        try:
            train(folder, phase, workers, ambush)
            code = 0
        finally:
            os._exit(code)
    return pid


def kill_once(
    folder: Path, phase: mmap.mmap, chance: random.Random, ambushes: Iterator[tuple[str, int, float]],
    life_s: float, workers: int,
) -> str:  # fmt: skip
    """Starts a training and kills it: every other time at any moment, else by the next ambush.

    The phase it was killed in; '' if it ended before.
    """
    share_left = 1 - max(CheckpointStore(folder / CHECKPOINTS).steps(), default=0) / NUM_STEPS
    if chance.random() < 0.5:
        pid = start(folder, phase, workers)
        time.sleep(chance.uniform(0, life_s * (0.1 + 0.9 * share_left)))
        os.kill(pid, signal.SIGKILL)
    else:
        name, times, delay_s = next(ambushes)
        ambush = Ambush(name, chance.randint(1, max(1, int(times * share_left))), chance.uniform(0, delay_s))
        pid = start(folder, phase, workers, ambush)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0, f"a training ended with {status}"
    return PHASES[phase[0]] if os.WIFSIGNALED(status) else ""


def finish(folder: Path, phase: mmap.mmap, workers: int) -> float:
    begun = time.monotonic()
    _, status = os.waitpid(start(folder, phase, workers), 0)
    assert os.waitstatus_to_exitcode(status) == 0, f"a training ended with {status}"
    return time.monotonic() - begun


def differences(one, other, where: str = "state") -> list[str]:
    """Where two trees of tensors and numbers are not the same, bit for bit."""
    if isinstance(one, torch.Tensor):
        same = isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
        return [] if same else [where]
    if isinstance(one, dict):
        if not isinstance(other, dict) or one.keys() != other.keys():
            return [where]
        return [fault for key in one for fault in differences(one[key], other[key], f"{where}[{key!r}]")]
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return [where]
        return [fault for i, item in enumerate(one) for fault in differences(item, other[i], f"{where}[{i}]")]
    return [] if repr(one) == repr(other) else [where]


def left_behind(folder: Path, want: Path) -> dict:
    """How a run's folder differs from that of the undisturbed one, and whatever was damaged or left lying about."""
    warned: list[str] = []
    mine, theirs = (CheckpointStore(f / CHECKPOINTS, warn=warned.append).load() for f in (folder, want))
    texts = [name for name in ("metrics.jsonl", "metrics.csv", "bad_samples.txt")
             if (folder / name).read_bytes() != (want / name).read_bytes()]  # fmt: skip
    files = [path.name for path in folder.rglob("*")]
    best = [CheckpointStore(f / CHECKPOINTS).best_path().name.split("-")[1] for f in (folder, want)]
    return {
        "differences": differences(mine.state, theirs.state),
        "texts": texts,
        "steps": [mine.step, theirs.step],
        "best": best,
        "warned": warned,
        "leftovers": [name for name in files if name.endswith((".tmp", ".corrupt", ".superseded"))],
    }


def main(folder: Path, num_kills: int, seed: int, workers: int) -> None:
    torch.set_num_threads(1)
    chance, ambushes = random.Random(seed), itertools.cycle(AMBUSHES)
    phase = mmap.mmap(-1, 1)
    train(folder / "warm-up", bytearray(1), 0)  # torch imports much at first use, which forks then need not
    want = folder / "undisturbed"
    life_s = finish(want, phase, workers)
    num_done = 0
    while num_done < num_kills:
        run, killed = folder / f"after-{num_done}", []
        for _ in range(min(chance.randint(2, 8), num_kills - num_done)):
            died_in = kill_once(run, phase, chance, ambushes, life_s, workers)
            killed += [died_in] if died_in else []
            if not died_in:
                break
        num_done += len(killed)
        finish(run, phase, workers)
        print(json.dumps({"killed": killed, **left_behind(run, want)}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
