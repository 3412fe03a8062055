"""One thread a device: takes batches from the line, runs them, splits those that do not fit, outlives its runner."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from hotlap.base.errors import HotlapError, OutOfMemory, UsageError, WorkerDied
from hotlap.measure.servable import Rows, Signature
from hotlap.tools.serve.counters import Counters
from hotlap.tools.serve.line import Clock, Line, Ticket, Turn
from hotlap.tools.serve.refusal import DeadlineExceeded
from hotlap.tools.serve.runner import at_once

ATTEMPTS = 2
"""Workers that a request may see die; then it is taken to be the cause, and refused."""
STARTS = 3
"""Starts in a row that may fail before a device is given up."""
IN_FLIGHT = 3
"""Batches with a device at a time: one that it computes, one that waits on it, and one on its way there or back.

With two, nothing waits on a device from the end of a batch until its outputs were copied out, the door heard of them,
and the next batch was sent, put together and launched; it is idle where that takes longer than computing does.
"""


@dataclass
class _Flight:
    """A batch that is with the device."""

    group: list[Ticket]
    outputs: Future[Rows]
    began: float


class DeviceWorker:
    """What stands between the line and one device."""

    def __init__(
        self,
        runner: Any,
        line: Line,
        counters: Counters,
        *,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """``runner`` is a Runner, or does with ``run(model, rows)`` alone; ``on_change`` is told when the worker is
        ready or gives up.
        """
        self._runner, self._line, self._counters = runner, line, counters
        self._clock, self._sleep, self._on_change = clock, sleep, on_change
        if hasattr(runner, "on_launch"):
            runner.on_launch = lambda model, seconds: counters.observe("launch_seconds", seconds, model=model)
        self._flying: deque[_Flight] = deque()
        self._landed_at = 0.0
        self._thread = threading.Thread(target=self._live, name=f"hotlap {runner.device}", daemon=True)
        self.device = runner.device
        self.state = "loading"
        """loading, ready, restarting, stopped, or 'failed: why'."""
        self.refused: UsageError | None = None
        """What is wrong with the models themselves, where that is why it failed."""
        self.signatures: dict[str, Signature] = {}

    @property
    def failed(self) -> bool:
        return self.state.startswith("failed")

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> bool:
        """Whether the worker has ended, waited for: the line is closed and everything in it answered."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _live(self) -> None:
        try:
            if not self.start_runner():
                return
            while True:
                first = self._flying[0].outputs if self._flying else None
                if first is not None and (len(self._flying) >= IN_FLIGHT or first.done()):
                    alive = self.land()
                else:
                    turn = self._line.next(self._clock, first.done if first is not None else None)
                    if turn is None and first is None:
                        break
                    alive = self.take_off(turn) if turn is not None else self.land()
                if not alive:
                    return
            self._enter("stopped")
        finally:
            self._runner.stop()

    def _enter(self, state: str) -> None:
        self.state = state
        self._on_change()

    def start_runner(self) -> bool:
        """Whether the runner is up; it is tried a few times, ever slower, because a card may need a moment."""
        for attempt in range(STARTS):
            try:
                self.signatures = self._runner.start()
            except WorkerDied as error:
                why = error.what
                self._sleep(2.0**attempt)
            except Exception as error:  # noqa: BLE001 - a model may fail to load in any way; that is told, not retried
                self.refused = error if isinstance(error, UsageError) else None
                self._enter(f"failed: {error}")
                return False
            else:
                self._enter("ready")
                return True
        self._enter(f"failed: {why}")
        return False

    def serve(self, turn: Turn) -> bool:
        """Answers everything in a turn; False when the device had to be given up."""
        alive = self.take_off(turn)
        while alive and self._flying:
            alive = self.land()
        return alive

    def take_off(self, turn: Turn) -> bool:
        """Hands a turn's batch to the device; False when the device had to be given up.

        A request that a worker has died with goes alone: nothing else is with the device then.
        """
        for ticket in turn.expired:
            self._fail(ticket, DeadlineExceeded(ticket.model, self._clock() - ticket.arrived))
        if not turn.batch:
            return True
        suspect = turn.batch[0].deaths > 0
        while suspect and self._flying:
            if not self.land():
                self._line.rejoin(turn.batch)
                return False
        now = self._clock()
        for ticket in turn.batch:
            self._counters.observe("queue_seconds", now - ticket.arrived, model=ticket.model)
        outputs = self._begin(turn.batch[0].model, [ticket.rows for ticket in turn.batch])
        self._flying.append(_Flight(turn.batch, outputs, now))
        outputs.add_done_callback(lambda _: self._line.poke())
        return self.land() if suspect else True

    def land(self) -> bool:
        """Answers the oldest batch with the device, waited for; False when the device had to be given up.

        A fault of our own costs the requests in it, which are told, and not the thread.
        """
        flight = self._flying.popleft()
        todo = [flight.group]
        while todo:
            group = todo.pop()
            try:
                again = group is not flight.group
                outputs = self._begin(group[0].model, [t.rows for t in group]) if again else flight.outputs
                self._hand_out(group, self._outputs(group, outputs, max(flight.began, self._landed_at)))
            except WorkerDied as error:
                return self._after_death(group, [ticket for rest in reversed(todo) for ticket in rest], error)
            except Exception as error:  # noqa: BLE001 - whatever the model raises belongs to one request: it is found
                if len(group) == 1:
                    self._fail(group[0], error)
                else:
                    middle = len(group) // 2
                    todo += [group[middle:], group[:middle]]
        return True

    def _begin(self, model: str, parts: Sequence[Rows]) -> Future[Rows]:
        if not hasattr(self._runner, "begin"):
            return at_once(lambda: self._runner.run(model, _joined(parts)))
        try:
            begun: Future[Rows] = self._runner.begin(model, parts)
        except Exception as error:  # noqa: BLE001 - such as no room in shared memory: told to those who asked
            begun = Future()
            begun.set_exception(error)
        return begun

    def _outputs(self, group: list[Ticket], outputs: Future[Rows], began: float) -> Rows:
        """The outputs of a batch that was begun, in as many parts as memory asks for."""
        first, num_rows = group[0], sum(ticket.num_rows for ticket in group)
        try:
            try:
                return self._checked(first.model, num_rows, outputs.result())
            except OutOfMemory:
                if num_rows == 1:
                    raise
                return self._split(first, _joined([ticket.rows for ticket in group]))
        finally:
            self._landed_at = self._clock()
            self._line.charge(first.model, self._landed_at - began, num_rows)
            self._counters.observe("batch_seconds", self._landed_at - began, model=first.model)

    def _split(self, first: Ticket, rows: Rows) -> Rows:
        """The outputs of rows that did not fit, half by half; later batches are no larger than what fitted."""
        num_rows = int(rows[0].shape[0])
        self._counters.count("oom_splits_total", model=first.model)
        middle = num_rows // 2
        self._line.cap(first.key, middle)
        halves = []
        for half in (tuple(t[:middle] for t in rows), tuple(t[middle:] for t in rows)):
            size = int(half[0].shape[0])
            try:
                halves.append(self._checked(first.model, size, self._begin(first.model, [half]).result()))
            except OutOfMemory:
                if size == 1:
                    raise
                halves.append(self._split(first, half))
        return _joined(halves)

    def _checked(self, model: str, num_rows: int, out: Rows) -> Rows:
        self._counters.observe("batch_rows", num_rows, model=model)
        wrong = [tuple(t.shape) for t in out if not t.ndim or t.shape[0] != num_rows]
        if wrong:
            raise HotlapError(f"model {model!r} answered {num_rows} rows with an output of shape {wrong[0]}")
        return out

    def _hand_out(self, group: list[Ticket], outputs: Rows) -> None:
        start, now = 0, self._clock()
        for ticket in group:
            end = start + ticket.num_rows
            if ticket.deadline <= now:
                self._fail(ticket, DeadlineExceeded(ticket.model, now - ticket.arrived))
            else:
                ticket.future.set_result(tuple(out[start:end] for out in outputs))
            start = end

    def _after_death(self, with_it: list[Ticket], untouched: list[Ticket], error: WorkerDied) -> bool:
        """Puts what was accepted back in line and starts anew; a request that has seen too many workers die is refused.

        Whether the device came back.
        """
        self._counters.count("worker_deaths_total", device=self.device)
        with_it = with_it + [ticket for flight in self._flying for ticket in flight.group]
        self._flying.clear()
        for ticket in with_it:
            ticket.deaths += 1
        again = [ticket for ticket in with_it if ticket.deaths < ATTEMPTS]
        for ticket in again:
            self._counters.count("retried_total", model=ticket.model)
        self._line.rejoin(again + untouched)
        for ticket in with_it:
            if ticket.deaths >= ATTEMPTS:
                self._fail(ticket, error)
        self._enter("restarting")
        return self.start_runner()

    def _fail(self, ticket: Ticket, error: Exception) -> None:
        if ticket.future.done():
            return
        if ticket.future.running() or ticket.future.set_running_or_notify_cancel():
            ticket.future.set_exception(error)


def _joined(parts: Sequence[Rows]) -> Rows:
    """The rows of several parts as one."""
    import torch

    return parts[0] if len(parts) == 1 else tuple(torch.cat(column) for column in zip(*parts, strict=True))
