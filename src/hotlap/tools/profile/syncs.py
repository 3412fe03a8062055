"""Where the host waited for the device, with the operator and the source line."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np

from hotlap.data.kineto import SETTLE_MARK, Events, Ints, Trace
from hotlap.tools.profile.categories import SYNC_CALL
from hotlap.tools.profile.found import Sync
from hotlap.tools.profile.on_device import innermost
from hotlap.tools.profile.spans import Spans
from hotlap.tools.profile.timeline import Covered, parents
from hotlap.tools.profile.window import Window

MAX_SYNCS = 30
_FUNCTION = re.compile(r"^(.*)\((\d+)\): ")


def syncs_found(trace: Trace, spans: Spans, window: Window) -> list[Sync]:
    """Synchronising calls of the runtime within the steps, by place, the longest first."""
    calls = trace.runtime.take(trace.mask(trace.runtime, lambda name: bool(SYNC_CALL.search(name))))
    calls = calls.take((calls.start >= window.start) & (calls.start < window.end))
    ours = trace.notes.take(trace.mask(trace.notes, lambda name: name == SETTLE_MARK))
    calls = calls.take(~Covered(ours.start, ours.end).holds(calls.start))
    if not len(calls):
        return []
    span = innermost(spans, calls.start, calls.thread)
    lines = source_lines(trace, calls.start, calls.thread)
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for index, line in enumerate(lines):
        op = int(span[index])
        while op >= 0 and spans.parent_op[op] >= 0:
            op = int(spans.parent_op[op])
        name = trace.names[spans.events.name[op]] if op >= 0 else ""
        found[(trace.names[calls.name[index]], name, line)].append(float(calls.duration[index]))
    ranked = sorted(found.items(), key=lambda item: -sum(item[1]))
    return [
        Sync(call=call, op=op, where=where, count=len(times) / window.steps, ms=window.per_step_ms(sum(times)))
        for (call, op, where), times in ranked[:MAX_SYNCS]
    ]


def source_lines(trace: Trace, time: np.ndarray, thread: np.ndarray) -> list[str]:
    """``file:line`` outside torch from which each instant was reached; '' where the trace has no stacks."""
    lines = [""] * len(time)
    if not len(trace.python):
        return lines
    for which in np.unique(thread):
        asked = np.flatnonzero(thread == which)
        calls = trace.python.take(trace.python.thread == which)
        if not len(calls):
            continue
        above = parents(calls.start, calls.end, calls.thread)
        place = np.searchsorted(calls.start, time[asked], side="right") - 1
        for target, at in zip(asked.tolist(), place.tolist(), strict=True):
            lines[target] = _line(trace, calls, above, at, float(time[target]))
    return lines


def _line(trace: Trace, calls: Events, above: Ints, at: int, instant: float) -> str:
    """The nearest line outside torch from the call at ``at`` outwards; of torch's own where there is none."""
    while at >= 0 and calls.end[at] < instant:
        at = int(above[at])
    nearest = ""
    while at >= 0:
        caller = trace.names[calls.extra[at]] if calls.extra[at] >= 0 else ""
        match = _FUNCTION.match(trace.names[calls.name[at]])
        # Older torch does not say from which line a call came; the function's first line is the next best.
        line = caller or (f"{match[1]}:{match[2]}" if match else "")
        nearest = nearest or line
        if line and not line.startswith(("torch/", "<frozen")) and "/torch/" not in line:
            return line
        at = int(above[at])
    return nearest
