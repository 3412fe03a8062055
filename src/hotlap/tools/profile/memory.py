"""The memory timeline of a trace, and who held what at its peak."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np

from hotlap.data.kineto import NONE, MemoryEvents, Trace
from hotlap.tools.profile.found import MemoryFound, Owner
from hotlap.tools.profile.on_device import innermost
from hotlap.tools.profile.spans import Spans
from hotlap.tools.profile.window import Window

MAX_POINTS = 400
MAX_OWNERS = 25


def memory_found(trace: Trace, spans: Spans, window: Window) -> list[MemoryFound]:
    """A timeline for each device that allocated within the steps; the host is left out beside a card."""
    events = trace.memory
    devices = [int(device) for device in np.unique(events.device)]
    cards = [device for device in devices if device != NONE]
    found = [_one(trace, spans, window, device) for device in cards or devices]
    return [one for one in found if one is not None]


def _one(trace: Trace, spans: Spans, window: Window, device: int) -> MemoryFound | None:
    events = _of(trace.memory, device, window)
    if not len(events):
        return None
    if device == NONE:
        # The host's allocator counts only what the profiler saw, so the sum since the window began is as good.
        level = np.cumsum(events.size)
        level = level - min(int(level.min()), 0)
        base = int(level[0] - events.size[0])
    else:
        level = events.allocated
        base = int(level[0] - events.size[0])
    peak = int(np.argmax(level))
    keep = _corners(level)
    return MemoryFound(
        device="host" if device == NONE else f"cuda:{device}",
        peak_bytes=int(level[peak]),
        peak_at_ms=float(events.time[peak] - window.start) / 1e3,
        base_bytes=max(base, 0),
        times_ms=[round(float(t - window.start) / 1e3, 4) for t in events.time[keep]],
        allocated_bytes=[int(value) for value in level[keep]],
        owners=_owners(trace, spans, events, peak),
    )


def _of(events: MemoryEvents, device: int, window: Window) -> MemoryEvents:
    keep = (events.device == device) & (events.time >= window.start) & (events.time <= window.end)
    return MemoryEvents(
        time=events.time[keep],
        thread=events.thread[keep],
        address=events.address[keep],
        size=events.size[keep],
        allocated=events.allocated[keep],
        device=events.device[keep],
    )


def _corners(level: np.ndarray) -> np.ndarray:
    """Up to MAX_POINTS places whose levels keep the shape: of each stretch its lowest and its highest."""
    if len(level) <= MAX_POINTS:
        return np.arange(len(level))
    edges = np.linspace(0, len(level), MAX_POINTS // 2 + 1).astype(int)
    places: set[int] = {0, len(level) - 1}
    for begin, end in pairwise(edges.tolist()):
        if end > begin:
            places |= {begin + int(np.argmin(level[begin:end])), begin + int(np.argmax(level[begin:end]))}
    return np.array(sorted(places))


def _owners(trace: Trace, spans: Spans, events: MemoryEvents, peak: int) -> list[Owner]:
    """Who made the allocations that were alive at the peak, largest first."""
    alive: dict[int, int] = {}
    for index in range(peak + 1):
        address = int(events.address[index])
        if events.size[index] > 0:
            alive[address] = index
        else:
            alive.pop(address, None)
    held = np.array(sorted(alive.values()), dtype=np.int64)
    if not len(held):
        return []
    span = innermost(spans, events.time[held], events.thread[held])
    sizes: dict[str, list[int]] = defaultdict(list)
    for where, size in zip(span.tolist(), events.size[held].tolist(), strict=True):
        sizes[_who(trace, spans, where)].append(size)
    ranked = sorted(sizes.items(), key=lambda item: -sum(item[1]))
    return [Owner(what=what, bytes=sum(found), count=len(found)) for what, found in ranked[:MAX_OWNERS]]


def _who(trace: Trace, spans: Spans, span: int) -> str:
    """The outermost operator that is not the autograd engine's wrapper, with its module and phase."""
    if span < 0:
        return "outside operators"
    top = span
    while spans.parent_op[top] >= 0:
        above = int(spans.parent_op[top])
        if trace.names[spans.events.name[above]].startswith("autograd::engine"):
            break
        top = above
    module = spans.module[span]
    phase = spans.phase[span]
    place = ", ".join(part for part in (module, "" if phase == "forward" else phase) if part)
    return trace.names[spans.events.name[top]] + (f" [{place}]" if place else "")
