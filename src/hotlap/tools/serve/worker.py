"""One thread a device: takes batches from the line, runs them, splits those that do not fit, outlives its runner."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hotlap.base.errors import HotlapError, OutOfMemory, WorkerDied
from hotlap.measure.servable import Signature
from hotlap.tools.serve.counters import Counters
from hotlap.tools.serve.line import Clock, Line, Ticket, Turn
from hotlap.tools.serve.refusal import DeadlineExceeded
from hotlap.tools.serve.runner import Runner

if TYPE_CHECKING:
    from torch import Tensor

ATTEMPTS = 2
"""Workers that a request may see die; then it is taken to be the cause, and refused."""
STARTS = 3
"""Starts in a row that may fail before a device is given up."""


class DeviceWorker:
    """What stands between the line and one device."""

    def __init__(
        self,
        runner: Runner,
        line: Line,
        counters: Counters,
        *,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_change`` is told when the worker becomes ready or gives up."""
        self._runner, self._line, self._counters = runner, line, counters
        self._clock, self._sleep, self._on_change = clock, sleep, on_change
        self._thread = threading.Thread(target=self._live, name=f"hotlap {runner.device}", daemon=True)
        self.device = runner.device
        self.state = "loading"
        """loading, ready, restarting, stopped, or 'failed: why'."""
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
            while (turn := self._line.next(self._clock)) is not None:
                if not self._survive(turn):
                    return
            self._enter("stopped")
        finally:
            self._runner.stop()

    def _survive(self, turn: Turn) -> bool:
        """Serves a turn; a fault of our own costs the requests in it, which are told, and not the thread."""
        try:
            return self.serve(turn)
        except Exception as error:  # noqa: BLE001 - without this thread every later request would wait for ever
            for ticket in [*turn.batch, *turn.expired]:
                if not ticket.future.done():
                    self._fail(ticket, error)
            return True

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
                self._enter(f"failed: {error.what if isinstance(error, HotlapError) else error}")
                return False
            else:
                self._enter("ready")
                return True
        self._enter(f"failed: {why}")
        return False

    def serve(self, turn: Turn) -> bool:
        """Answers everything in a turn; False when the device had to be given up."""
        for ticket in turn.expired:
            self._fail(ticket, DeadlineExceeded(ticket.model, self._clock() - ticket.arrived))
        todo = [turn.batch] if turn.batch else []
        now = self._clock()
        for ticket in turn.batch:
            self._counters.observe("queue_seconds", now - ticket.arrived, model=ticket.model)
        while todo:
            group = todo.pop()
            try:
                outputs = self._run(group)
            except WorkerDied as error:
                self._counters.count("worker_deaths_total", device=self.device)
                self._after_death(group, [ticket for rest in reversed(todo) for ticket in rest], error)
                self._enter("restarting")
                return self.start_runner()
            except Exception as error:  # noqa: BLE001 - whatever the model raises belongs to one request: it is found
                if len(group) == 1:
                    self._fail(group[0], error)
                else:
                    middle = len(group) // 2
                    todo += [group[middle:], group[:middle]]
            else:
                self._hand_out(group, outputs)
        return True

    def _run(self, group: list[Ticket]) -> tuple[Tensor, ...]:
        import torch

        model, num_rows = group[0].model, sum(t.num_rows for t in group)
        columns = zip(*(ticket.rows for ticket in group), strict=True)
        rows = group[0].rows if len(group) == 1 else tuple(torch.cat(column) for column in columns)
        began = self._clock()
        try:
            return self._run_split(group[0], rows)
        finally:
            took = self._clock() - began
            self._line.charge(model, took, num_rows)
            self._counters.observe("batch_seconds", took, model=model)

    def _run_split(self, first: Ticket, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The outputs of rows, in as many parts as memory asks for; later batches are no larger than what fitted."""
        import torch

        num_rows = int(rows[0].shape[0])
        try:
            out = self._runner.run(first.model, rows)
        except OutOfMemory:
            if num_rows == 1:
                raise
            self._counters.count("oom_splits_total", model=first.model)
            middle = num_rows // 2
            self._line.cap(first.key, middle)
            halves = [self._run_split(first, part) for part in _cut(rows, middle)]
            return tuple(torch.cat(column) for column in zip(*halves, strict=True))
        self._counters.observe("batch_rows", num_rows, model=first.model)
        wrong = [tuple(t.shape) for t in out if not t.ndim or t.shape[0] != num_rows]
        if wrong:
            raise HotlapError(f"model {first.model!r} answered {num_rows} rows with an output of shape {wrong[0]}")
        return out

    def _hand_out(self, group: list[Ticket], outputs: tuple[Tensor, ...]) -> None:
        start, now = 0, self._clock()
        for ticket in group:
            end = start + ticket.num_rows
            if ticket.deadline <= now:
                self._fail(ticket, DeadlineExceeded(ticket.model, now - ticket.arrived))
            else:
                ticket.future.set_result(tuple(out[start:end] for out in outputs))
            start = end

    def _after_death(self, with_it: list[Ticket], untouched: list[Ticket], error: WorkerDied) -> None:
        """Puts what was accepted back in line; a request that has seen too many workers die is refused."""
        for ticket in with_it:
            ticket.deaths += 1
        again = [ticket for ticket in with_it if ticket.deaths < ATTEMPTS]
        for ticket in again:
            self._counters.count("retried_total", model=ticket.model)
        self._line.rejoin(again + untouched)
        for ticket in with_it:
            if ticket.deaths >= ATTEMPTS:
                self._fail(ticket, error)

    def _fail(self, ticket: Ticket, error: Exception) -> None:
        if ticket.future.running() or ticket.future.set_running_or_notify_cancel():
            ticket.future.set_exception(error)


def _cut(rows: tuple[Tensor, ...], at: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    return tuple(t[:at] for t in rows), tuple(t[at:] for t in rows)
