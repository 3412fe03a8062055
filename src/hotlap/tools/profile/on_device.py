"""The step on a device: each piece of work with the operator behind it, and every idle gap with its reason."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hotlap.data.kineto import NONE, Events, Floats, Ints, Trace
from hotlap.tools.profile.categories import COMMUNICATION, LOADER, OTHER, SYNC_CALL, category_of
from hotlap.tools.profile.spans import FORWARD, Spans
from hotlap.tools.profile.timeline import Covered, clipped, layered, merged
from hotlap.tools.profile.window import Window

LAUNCH, SYNC, LOADER_WAIT = "launch-bound", "waiting for a sync", "waiting for the loader"
HOST_COPY, BETWEEN = "copy prepared by the host", "between queued kernels"
IDLE_REASONS = (LAUNCH, SYNC, LOADER_WAIT, HOST_COPY, BETWEEN)


@dataclass(frozen=True, kw_only=True)
class DeviceWork:
    """Work of one device within the window, in the order it began. Columns run in parallel."""

    events: Events
    own: Floats
    """Microseconds that belong to each piece alone."""
    span: Ints
    """The operator that launched it, or NONE."""
    launch: Ints
    """Its runtime call, or NONE."""
    category: list[str]
    phase: list[str]
    module: list[str]


def device_work(trace: Trace, spans: Spans, window: Window) -> tuple[DeviceWork, list[str]]:
    """What the busiest device of the trace did, and what a reader must know about the others."""
    devices = np.array([trace.threads[thread].partition("/")[0] for thread in trace.device.thread])
    names, counts = np.unique(devices, return_counts=True)
    chosen = names[np.argmax(counts)]
    others = [str(name) for name in names if name != chosen]
    warnings = [f"Work on device {', '.join(others)} is left out; the step is that of {chosen}."] if others else []
    inside = (devices == chosen) & (trace.device.end > window.start) & (trace.device.start < window.end)
    events = trace.device.take(inside)
    start, end = clipped(events.start, events.end, window.start, window.end)
    launch = _by_key(trace.runtime.correlation, events.correlation)
    span = _operator_of(trace, spans, events, launch)
    category, phase, module = _labels(trace, spans, events, span)
    # Copies and exchanges run beside the computation; only what it does not hide costs time.
    moves = trace.mask(events, lambda name: name.startswith("Memcpy"))
    behind = moves | np.array([name == COMMUNICATION for name in category], dtype=bool)
    work = DeviceWork(
        events=events,
        own=layered(start, end, behind),
        span=span,
        launch=launch,
        category=category,
        phase=phase,
        module=module,
    )
    return work, warnings


def _by_key(keys: Ints, wanted: Ints) -> Ints:
    """The place of each wanted key among ``keys``, or NONE."""
    if not len(keys):
        return np.full(len(wanted), NONE, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    place = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    found = order[place]
    return np.where((keys[found] == wanted) & (wanted >= 0), found, NONE)


def _operator_of(trace: Trace, spans: Spans, events: Events, launch: Ints) -> Ints:
    """The operator behind each piece of work: by its id, else the innermost one around its launch."""
    ops = np.flatnonzero(spans.is_op)
    by_id = _by_key(spans.events.link[ops], events.link)
    found = np.where(by_id >= 0, ops[np.maximum(by_id, 0)] if len(ops) else NONE, NONE)
    missing = np.flatnonzero((found < 0) & (launch >= 0))
    if len(missing):
        calls = launch[missing]
        found[missing] = innermost(spans, trace.runtime.start[calls], trace.runtime.thread[calls])
    return found


def innermost(spans: Spans, time: Floats, thread: Ints) -> Ints:
    """The innermost operator running at each instant on its thread, or NONE."""
    result = np.full(len(time), NONE, dtype=np.int64)
    for which in np.unique(thread):
        mine = np.flatnonzero(spans.events.thread == which)
        asked = np.flatnonzero(thread == which)
        if not len(mine):
            continue
        place = np.searchsorted(spans.events.start[mine], time[asked], side="right") - 1
        for target, at in zip(asked, place, strict=True):
            span = int(mine[at]) if at >= 0 else NONE
            while span >= 0 and spans.events.end[span] <= time[target]:
                span = int(spans.parent[span])
            if span >= 0 and not spans.is_op[span]:
                span = int(spans.parent_op[span])
            result[target] = span
    return result


def _labels(trace: Trace, spans: Spans, events: Events, span: Ints) -> tuple[list[str], list[str], list[str]]:
    by_name = {int(index): category_of(trace.names[index]) for index in np.unique(events.name)} if len(events) else {}
    category, phase, module = [], [], []
    for name, where in zip(events.name.tolist(), span.tolist(), strict=True):
        known = spans.category[where] if where >= 0 else OTHER
        # Exchanges start from hooks inside whatever operator finished last, so their own name decides.
        decides = known == OTHER or by_name[name] == COMMUNICATION
        category.append((by_name[name] or OTHER) if decides else known)
        phase.append(spans.phase[where] if where >= 0 else FORWARD)
        module.append(spans.module[where] if where >= 0 else "")
    return category, phase, module


def idle_reasons(trace: Trace, work: DeviceWork, window: Window) -> dict[str, float]:
    """Microseconds in which the device had nothing to do, by reason; they add up to the window minus its work."""
    reasons = dict.fromkeys(IDLE_REASONS, 0.0)
    start, end = clipped(work.events.start, work.events.end, window.start, window.end)
    busy_start, busy_end = merged(start, end)
    gap_start = np.concatenate(([window.start], busy_end))
    gap_end = np.concatenate((busy_start, [window.end]))
    following = np.concatenate((np.searchsorted(start, busy_start, side="left"), [NONE])).astype(np.int64)
    real = gap_end > gap_start
    gap_start, gap_end, following = gap_start[real], gap_end[real], following[real]
    launch = np.where(following >= 0, work.launch[np.maximum(following, 0)] if len(work.launch) else NONE, NONE)
    known = launch >= 0
    # Without a call to look at, the host is taken to have been busy until the gap's end.
    call_start = np.where(known, trace.runtime.start[np.maximum(launch, 0)] if len(trace.runtime) else gap_end, gap_end)
    call_end = np.where(known, trace.runtime.end[np.maximum(launch, 0)] if len(trace.runtime) else gap_end, gap_end)
    queued = known & (call_end <= gap_start)
    reasons[BETWEEN] = float((gap_end - gap_start)[queued].sum())
    rest = ~queued
    host = _Host(trace)
    copies = np.isin(following, np.flatnonzero(trace.mask(work.events, lambda name: name.startswith("Memcpy"))))
    _split(reasons, host, gap_start[rest], gap_end[rest], call_start[rest], copies[rest])
    return reasons


class _Host:
    """What the host was doing: waiting in a synchronising call, or for the loader."""

    def __init__(self, trace: Trace) -> None:
        waits = trace.runtime.take(trace.mask(trace.runtime, lambda name: bool(SYNC_CALL.search(name))))
        self.sync = Covered(waits.start, waits.end)
        notes = trace.notes.take(trace.mask(trace.notes, lambda name: bool(LOADER.search(name))))
        self.loader = Covered(notes.start, notes.end)


def _split(
    reasons: dict[str, float], host: _Host, start: Floats, end: Floats, call: Floats, copies: np.ndarray
) -> None:
    """Gaps that end with a launch the host was late with.

    A gap that begins while the host waits in a call belongs to that wait whole: the host was ahead until then, and
    what it does afterwards to refill the queue is the wait's price.
    """
    length = end - start
    drained = host.sync.holds(start)
    reasons[SYNC] += float(length[drained].sum())
    start, end, call, copies = (
        start[~drained],
        end[~drained],
        np.clip(call[~drained], None, end[~drained]),
        copies[~drained],
    )
    length = end - start
    until = np.maximum(call, start)
    waiting = host.sync.between(start, until)
    loading = np.minimum(host.loader.between(start, until), until - start - waiting)
    staging = np.where(copies, end - until, 0.0)
    reasons[SYNC] += float(waiting.sum())
    reasons[LOADER_WAIT] += float(loading.sum())
    reasons[HOST_COPY] += float(staging.sum())
    reasons[LAUNCH] += float((length - waiting - loading - staging).sum())
