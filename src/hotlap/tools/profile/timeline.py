"""Arithmetic on intervals: who contains whom, and to whom an instant belongs when several run at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def parents(start: Floats, end: Floats, thread: Ints) -> Ints:  # [n] each, sorted by start, containers first
    """For each span the index of the smallest one around it on its thread, or -1."""
    found = np.full(len(start), -1, dtype=np.int64)
    open_spans: dict[int, list[int]] = {}
    begins, ends, threads = start.tolist(), end.tolist(), thread.tolist()
    result = found.tolist()
    for index, (begin, stop, where) in enumerate(zip(begins, ends, threads, strict=True)):
        stack = open_spans.setdefault(where, [])
        # A child may end some nanoseconds after its parent, because each end is rounded on its own.
        while stack and (ends[stack[-1]] <= begin or ends[stack[-1]] < stop - 0.5):
            stack.pop()
        if stack:
            result[index] = stack[-1]
        stack.append(index)
    return np.array(result, dtype=np.int64) if result else found


def self_times(start: Floats, end: Floats, parent: Ints) -> Floats:
    """Each span's length without that of the spans directly inside it; never negative."""
    length = end - start
    inside = np.zeros(len(length))
    has = parent >= 0
    np.add.at(inside, parent[has], length[has])
    return np.maximum(length - inside, 0.0)


def exclusive(start: Floats, end: Floats) -> Floats:  # sorted by start
    """The time that belongs to each interval alone: an instant goes to the first that reached it.

    The sum is the length of the union, so that work on several streams is not counted twice.
    """
    if not len(start):
        return np.zeros(0)
    reached = np.concatenate(([-np.inf], np.maximum.accumulate(end)[:-1]))
    return np.maximum(end - np.maximum(start, reached), 0.0)


def layered(start: Floats, end: Floats, behind: NDArray[np.bool_]) -> Floats:  # sorted by start
    """As :func:`exclusive`, but intervals that are ``behind`` get only what no other covers."""
    own = np.zeros(len(start))
    front = ~behind
    own[front] = exclusive(start[front], end[front])
    low, high = start[behind], end[behind]
    if len(low):
        # The part that is an interval's alone among its like is its end, so one stretch.
        alone = exclusive(low, high)
        own[behind] = alone - Covered(start[front], end[front]).between(high - alone, high)
    return own


def merged(start: Floats, end: Floats) -> tuple[Floats, Floats]:
    """The union of intervals as disjoint ones, in order."""
    if not len(start):
        return np.zeros(0), np.zeros(0)
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    opens = np.concatenate(([True], start[1:] > end[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return start[opens], end[closes]


class Covered:
    """How much of any stretch of time a set of intervals covers."""

    def __init__(self, start: Floats, end: Floats) -> None:
        self.start, self.end = merged(start, end)
        lengths = self.end - self.start
        before = np.concatenate(([0.0], np.cumsum(lengths)))
        self._times = np.column_stack((self.start, self.end)).ravel()
        self._sums = np.column_stack((before[:-1], before[1:])).ravel()

    def until(self, time: Floats) -> Floats:
        """Covered time before each instant."""
        return np.interp(time, self._times, self._sums) if len(self._times) else np.zeros(len(time))

    def between(self, start: Floats, end: Floats) -> Floats:
        """Covered time within each stretch; 0 where it is turned round."""
        return np.where(end > start, self.until(end) - self.until(start), 0.0)

    def holds(self, time: Floats) -> NDArray[np.bool_]:
        """Whether each instant lies inside an interval that began before it."""
        if not len(self.start):
            return np.zeros(len(time), dtype=bool)
        place = np.searchsorted(self.start, time, side="left") - 1
        return (place >= 0) & (self.end[np.maximum(place, 0)] > time)


def clipped(start: Floats, end: Floats, low: float, high: float) -> tuple[Floats, Floats]:
    """Intervals cut to a window; one outside it becomes empty."""
    return np.clip(start, low, high), np.clip(end, low, high)
