"""Which part of a trace is steps, and how many."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from hotlap.base.errors import DataError
from hotlap.data.kineto import Trace

_STEP = re.compile(r"ProfilerStep#\d+")
_OPTIMIZER = re.compile(r"Optimizer\.step#")


@dataclass(frozen=True, kw_only=True)
class Window:
    """The traced steps: from the beginning of the first to the end of the last's work."""

    start: float
    end: float
    steps: int
    warnings: tuple[str, ...] = ()

    @property
    def length(self) -> float:
        return self.end - self.start

    def per_step_ms(self, microseconds: float) -> float:
        return float(microseconds) / 1e3 / self.steps


def find_window(trace: Trace) -> Window:
    """The steps of a trace by the profiler's marks, else by the optimizer's, else the whole trace as one."""
    marks = trace.notes.take(trace.mask(trace.notes, lambda name: bool(_STEP.fullmatch(name))))
    spans = [table for table in (trace.ops, trace.runtime, trace.device) if len(table)]
    last_end = max(float(table.end.max()) for table in spans)
    if len(marks):
        start, end = float(marks.start.min()), float(marks.end.max())
        window = Window(start=start, end=max(end, _device_end(trace, start, end)), steps=len(marks))
    else:
        start = min(float(table.start.min()) for table in spans)
        steps = int(trace.mask(trace.notes, lambda name: bool(_OPTIMIZER.match(name))).sum())
        word = f"{steps} optimizer steps were counted instead" if steps else "the whole trace is taken as one step"
        window = Window(
            start=start, end=last_end, steps=max(steps, 1), warnings=(f"The trace has no step marks; {word}.",)
        )
    if window.length <= 0:
        raise DataError(
            f"trace {trace.path!r} holds no time: its steps begin and end at {window.start:g} us",
            remedy="Trace at least one whole step",
        )
    return window


def _device_end(trace: Trace, start: float, end: float) -> float:
    """When the device finished what the host launched within the steps."""
    if not len(trace.device):
        return end
    launches = trace.runtime
    inside = (launches.start >= start) & (launches.start <= end) & (launches.correlation >= 0)
    ours = np.isin(trace.device.correlation, launches.correlation[inside])
    return float(trace.device.end[ours].max()) if ours.any() else end
