"""The step on the host: each operator's own time, and what is left between operators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hotlap.data.kineto import Floats, Trace
from hotlap.tools.profile.categories import LOADER
from hotlap.tools.profile.spans import Spans
from hotlap.tools.profile.timeline import Covered, clipped, exclusive, self_times
from hotlap.tools.profile.window import Window

BETWEEN_OPS, LOADER_WAIT = "host code between operators", "waiting for the loader"


@dataclass(frozen=True, kw_only=True)
class HostWork:
    """Operators within the window."""

    own: Floats
    """For each span, microseconds that are its alone; 0 for annotations."""
    total: Floats
    """The same with what is inside it."""


def host_work(spans: Spans, window: Window) -> HostWork:
    """Own times that add up to the time in which any operator ran, though several threads may run at once."""
    start, end = clipped(spans.events.start, spans.events.end, window.start, window.end)
    ops = spans.is_op
    parent = np.where(ops, spans.parent_op, -1)
    own = np.where(ops, self_times(start, np.where(ops, end, start), parent), 0.0)
    length = np.where(ops, end - start, 0.0)
    # Parents come before their children, so one pass finds everyone's root.
    root = list(range(len(start)))
    for index, above in enumerate(parent.tolist()):
        if above >= 0:
            root[index] = root[above]
    roots = np.flatnonzero(ops & (spans.parent_op < 0))
    within = np.bincount(np.array(root, dtype=np.int64), weights=own, minlength=len(start)) if root else np.zeros(0)
    scale = np.zeros(len(start))
    alone = exclusive(start[roots], end[roots])
    scale[roots] = np.divide(alone, within[roots], out=np.zeros(len(roots)), where=within[roots] > 0)
    shared = scale[root]
    return HostWork(own=own * shared, total=length * shared)


def host_idle(trace: Trace, work: HostWork, window: Window) -> dict[str, float]:
    """Microseconds in which no operator ran; they add up to the window minus the operators' time."""
    rest = max(window.length - float(work.own.sum()), 0.0)
    notes = trace.notes.take(trace.mask(trace.notes, lambda name: bool(LOADER.search(name))))
    covered = Covered(*clipped(notes.start, notes.end, window.start, window.end))
    loading = min(float((covered.end - covered.start).sum()), rest)
    return {BETWEEN_OPS: rest - loading, LOADER_WAIT: loading}
