"""Trainings that last given minutes: the fastest way to run them is tried first, the steps are planned by the clock.

A learning rate that falls along a cosine needs to know the last step. It is planned from the pace of the latest steps
and planned again and again, so that the rate comes to 0 just when the time is over, however busy the machine is. What
earlier calls have spent is kept beside their checkpoints: a call that was cut short is gone on with, and all calls
together get the minutes of one.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import signal
import statistics
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hotlap.base.events import Event
from hotlap.engine.checkpoint import CheckpointStore
from hotlap.engine.config import CHECKPOINTS, TrainConfig
from hotlap.engine.loop import Trainer
from hotlap.engine.progress import Outcome
from hotlap.workload import Workload

BEGAN = time.monotonic()
"""The minutes count from here: imports and reading are part of them."""
SETTLED, TRIED = 12, 36
"""Steps of a trial before the clock is started, and all of them: algorithms are chosen and passes recorded before."""
TRIAL_S = 15.0
"""A trial ends after so many seconds, whatever it has done."""
WINDOW = 20
"""Steps between two looks at the clock; the engine reads its losses as often, so the host is never further ahead."""
GRACE_S = 5.0
"""A training is told to stop when it is so late."""
CLOCK = "clock.json"


class Printer:
    """Events as lines, at most one of progress every few seconds."""

    def __init__(self, every_s: float = 10.0) -> None:
        self.every_s, self.said = every_s, 0.0

    def __call__(self, event: Event) -> None:
        now = time.monotonic()
        if event.kind == "advance" and now - self.said < self.every_s:
            return
        if event.text:
            self.said = now
            done = f"{event.done:.0f}/{event.total:.0f} " if event.total else ""
            print(f"[{now - BEGAN:5.0f} s] {done}{event.text}", flush=True)


class _Enough(Exception):
    """A trial has lasted long enough; what it trained is of no use."""


def seconds_a_step(workload: Workload, config: TrainConfig, device: torch.device) -> float:
    """The mean time of a training step once it has settled; nothing is kept of the training."""
    marks: list[tuple[int, float]] = []

    def stop() -> bool:
        step, late = trainer.progress.step, time.perf_counter() - began > TRIAL_S
        if (step >= SETTLED or late) if not marks else (step >= TRIED or (late and step > marks[0][0])):
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            marks.append((step, time.perf_counter()))
        if len(marks) == 2:
            raise _Enough
        return False

    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(_Enough):
        trainer = Trainer(judged_later(workload), config, Path(folder), device, should_stop=stop)
        began = time.perf_counter()
        trainer.run()
    (first, begin), (last, end) = marks
    return (end - begin) / (last - first)


def fastest(
    workload: Workload, ways: Mapping[str, TrainConfig], device: torch.device
) -> tuple[str, dict[str, float | str]]:
    """The name of the fastest way to train, and what each takes in seconds a step, or why it does not run.

    Nothing is tried where there is no choice.
    """
    if len(ways) == 1:
        return next(iter(ways)), {}
    found: dict[str, float | str] = {}
    for name, config in ways.items():
        try:
            found[name] = seconds_a_step(workload, config, device)
            print(f"{name}: {1e3 * float(found[name]):.1f} ms a step", flush=True)
        except Exception:  # noqa: BLE001 - whatever is wrong with one way, another may do
            found[name] = traceback.format_exc()[-1500:]
            print(f"{name} does not run: {found[name]}", flush=True)
        if config.compile != "off":
            torch._dynamo.reset()
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    right = {name: value for name, value in found.items() if isinstance(value, float)}
    if not right:
        raise SystemExit("no way to train runs here")
    return min(right, key=lambda name: right[name]), found


class Clock:
    """Tells a training when to stop, and where it will end as fast as it goes now."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.file = folder / CLOCK
        kept = json.loads(self.file.read_text()) if self.file.is_file() else {"spent_s": 0.0, "end": None}
        self.earlier_s, self.end = float(kept["spent_s"]), kept["end"]
        self.deadline = BEGAN + seconds - self.earlier_s
        self.trainer: Trainer | None = None
        self.told = False
        self._paces: deque[float] = deque(maxlen=5)
        self._mark: tuple[int, float] | None = None

    @property
    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    @property
    def spent_s(self) -> float:
        """By this call and those before."""
        return self.earlier_s + time.monotonic() - BEGAN

    def __call__(self) -> bool:
        """Whether the time is over; looks at the pace now and then."""
        assert self.trainer is not None
        step, now = self.trainer.progress.step, time.monotonic()
        if self._mark is None:
            self._mark = step, now
        elif step - self._mark[0] >= WINDOW:
            self._paces.append((now - self._mark[1]) / (step - self._mark[0]))
            self._mark = step, now
            self._plan(step)
            self.keep()
        return self.told or self.left_s < -GRACE_S

    def stop(self, *_: Any) -> None:
        """Hears of a signal: the training saves a checkpoint and ends."""
        self.told = True

    def _plan(self, step: int) -> None:
        """The first window is not asked: libraries choose algorithms in it."""
        assert self.trainer is not None
        if len(self._paces) > 1:
            pace = statistics.median(list(self._paces)[1:] if len(self._paces) < 5 else self._paces)
            self.end = step + max(1, int(self.left_s / pace))
            self.trainer.end_at(self.end)

    def keep(self) -> None:
        write_json(self.file, {"spent_s": self.spent_s, "end": self.end})


def train_within(workload: Workload, config: TrainConfig, folder: Path, device: torch.device, clock: Clock) -> Outcome:
    """The training up to the clock's end, from its last checkpoint on if it has left one in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    clock.trainer = Trainer(judged_later(workload), config, folder, device, emit=Printer(), should_stop=clock)
    earlier = CheckpointStore(folder / CHECKPOINTS).load("latest")
    if earlier is not None and clock.end is not None:
        clock.trainer.end_at(clock.end if clock.left_s > 0 else earlier.step)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, clock.stop)
    try:
        outcome = clock.trainer.run(earlier)
    finally:
        clock.keep()
    if clock.told:
        raise SystemExit(f"told to stop at step {outcome.step}; the same call goes on from there")
    return outcome


def judged_later(workload: Workload) -> Workload:
    """The same workload without data to judge by: scores are made afterwards, in one go."""
    plain = copy.copy(workload)
    plain.eval_data = lambda: None  # type: ignore[method-assign]
    return plain


def add_result(file: Path, group: str, name: str, found: Any) -> None:
    """Puts what was found into a result file that other calls add to."""
    kept = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    kept.setdefault(group, {})[name] = found
    write_json(file, kept)


def read_result(file: Path, group: str, name: str) -> dict[str, Any]:
    """What earlier calls have found; empty if nothing."""
    kept = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    found: dict[str, Any] = kept.get(group, {}).get(name, {})
    return found


def write_json(file: Path, content: Any) -> None:
    """The file is whole at any time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(".tmp")
    fresh.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
    fresh.replace(file)


def read_curve(folder: Path, rows: int = 200) -> list[dict[str, Any]]:
    """Some of the rows of metrics that a training has written, evenly spread."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return found[:: max(1, len(found) // rows)]
