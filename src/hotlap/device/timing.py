"""Two clocks: wall time of a block of iterations, and device time with the queue kept full.

Their gap is what the host could not feed in time. Nothing synchronises inside a block, so the timing costs the measured
code no more than an event record.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Step = Callable[[], None]
_CALIBRATION_CYCLES = 2_000_000
MOST_INTERVALS = 1000
"""Single times of one block that are kept: more than twice what a p99 needs. A block of a model whose steps take
microseconds has a hundred thousand, and to send, sort and save them took longer than to measure them."""


@dataclass(frozen=True)
class Block:
    """The times of one block of iterations."""

    wall_ms: float
    """End to end, divided by the iterations."""
    intervals_ms: list[float]
    """From the end of one iteration to the end of the next, on the device's own clock where it has one.

    Of a long block those of :func:`kept_of`.
    """


def kept_of(iterations: int) -> Sequence[int]:
    """The iterations whose own times are kept: all, or as many as may be, one drawn from each equal part of the block.

    So every iteration is as likely as any other, wherever in the block, and nothing that comes in regular turns is met
    always or never, as it would be by each hundredth.
    """
    if iterations <= MOST_INTERVALS:
        return range(iterations)
    draw = random.Random(0)
    edges = [iterations * part // MOST_INTERVALS for part in range(MOST_INTERVALS + 1)]
    return [draw.randrange(begin, end) for begin, end in pairwise(edges)]


def time_block(step: Step, iterations: int, device: torch.device, most_s: float = math.inf) -> Block:
    """Times ``iterations`` calls of ``step``, synchronising only before the first and after the last.

    On a CPU no call but the first begins after ``most_s`` seconds: where other work gets in between, a step may take a
    hundred times as long as the one that the number of iterations was made from. A card's queue is not asked for that.
    """
    return _time_cuda_block(step, iterations) if device.type == "cuda" else _time_host_block(step, iterations, most_s)


def _time_host_block(step: Step, iterations: int, most_s: float) -> Block:
    marks = [time.perf_counter()]
    end = marks[0] + most_s
    while len(marks) <= iterations and (marks[-1] < end or len(marks) == 1):
        step()
        marks.append(time.perf_counter())
    ran = len(marks) - 1
    return Block(1e3 * (marks[-1] - marks[0]) / ran, [1e3 * (marks[i + 1] - marks[i]) for i in kept_of(ran)])


def _time_cuda_block(step: Step, iterations: int) -> Block:
    import torch

    stream = torch.cuda.current_stream()  # to look it up for each event would take as long as to record one
    events = [torch.cuda.Event(enable_timing=True) for _ in range(iterations + 1)]
    for event in events:
        event.record(stream)  # the driver makes an event when it is first recorded: now, and not between two steps
    torch.cuda.synchronize()
    begin = time.perf_counter()
    events[0].record(stream)
    for event in events[1:]:
        step()
        event.record(stream)
    torch.cuda.synchronize()
    wall = time.perf_counter() - begin
    intervals = [events[i].elapsed_time(events[i + 1]) for i in kept_of(iterations)]
    return Block(1e3 * wall / iterations, intervals)


def time_host(step: Step, iterations: int) -> list[float]:
    """The host's own times in ms: from an empty queue until the call returns, while the device still works.

    Upper bounds for a step that reads a result of the device, or that has more launches than the queue holds.
    """
    import torch

    times = []
    for _ in range(iterations):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - begin))
    torch.cuda.synchronize()
    return times


class FullQueue:
    """Times the device alone: a spinning kernel holds the stream until the host has queued a whole iteration."""

    def __init__(self) -> None:
        import torch

        self._spin: Callable[[int], None] = torch.cuda._sleep  # type: ignore[attr-defined]
        self._cycles_per_ms = self._calibrate()

    def _calibrate(self) -> float:
        import torch

        self._spin(_CALIBRATION_CYCLES)
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        self._spin(_CALIBRATION_CYCLES)
        last.record()
        torch.cuda.synchronize()
        return _CALIBRATION_CYCLES / max(first.elapsed_time(last), 1e-3)

    def time(self, step: Step, iterations: int) -> tuple[list[float], bool]:
        """Device times in ms, and whether the host was always ahead; if not, they are upper bounds."""
        import torch

        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        hold_ms = min(2e3 * (time.perf_counter() - begin) + 0.5, 1000.0)
        torch.cuda.synchronize()
        times, ahead = [], True
        for _ in range(iterations):
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self._spin(int(hold_ms * self._cycles_per_ms))
            first.record()
            step()
            last.record()
            ahead = ahead and not first.query()  # the spin must still run when the last launch is queued
            torch.cuda.synchronize()
            times.append(first.elapsed_time(last))
        return times, ahead


def is_steady(medians: list[float], *, window: int = 3, within: float = 0.05) -> bool:
    """Whether the last ``window`` block medians lie within a fraction ``within`` of each other."""
    last = medians[-window:]
    return len(last) == window and max(last) <= (1 + within) * min(last)
