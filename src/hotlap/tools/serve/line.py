"""The line before the devices: rows wait by model and shape, bounded, and leave in full batches, each model in turn.

Nothing here knows of threads' work or of a clock: the time is handed in, so what leaves when can be told exactly.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from hotlap.measure.servable import Rows
from hotlap.tools.serve.refusal import QueueFull, ShuttingDown, TooManyRows

Clock = Callable[[], float]
Key = tuple[str, tuple[tuple[tuple[int, ...], str], ...]]
"""A model, and the shapes and types of its inputs without the rows: what may share a batch."""


@dataclass(frozen=True, kw_only=True)
class LineSettings:
    """How one model's requests wait."""

    batch_rows: int
    """Rows in a full batch."""
    max_delay_s: float = 0.005
    """How long the first of a batch waits for others."""
    queue_rows: int = 256
    """Rows that may wait."""


@dataclass(eq=False)
class Ticket:
    """Rows of one request that go through the model together, and the promise of their outputs."""

    model: str
    rows: Rows
    deadline: float
    """On the line's clock; infinity for none."""
    arrived: float
    future: Future[Rows] = field(default_factory=Future)
    deaths: int = 0
    """Workers that died while these rows were with them."""

    @property
    def num_rows(self) -> int:
        return int(self.rows[0].shape[0])

    @property
    def key(self) -> Key:
        return self.model, tuple((tuple(t.shape[1:]), str(t.dtype)) for t in self.rows)


@dataclass
class Turn:
    """What leaves the line at once: a batch, those who waited too long, or nothing for a while."""

    batch: list[Ticket] = field(default_factory=list)
    expired: list[Ticket] = field(default_factory=list)
    wait_s: float | None = None
    """Until something may have changed; None for as long as nothing arrives."""


class Line:
    """All that waits, of every model; safe to use from several threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._settings: dict[str, LineSettings] = {}
        self._waiting: dict[Key, deque[Ticket]] = {}
        self._rows: dict[str, int] = {}
        self._spent: dict[str, float] = {}
        self._pace: dict[str, float] = {}
        self._caps: dict[Key, int] = {}
        self._closed = False

    def open(self, model: str, settings: LineSettings) -> None:
        """Lets requests for ``model`` in."""
        with self._changed:
            self._settings[model] = settings
            self._rows.setdefault(model, 0)
            self._spent.setdefault(model, 0.0)

    def settings(self, model: str) -> LineSettings:
        return self._settings[model]

    def depth(self, model: str) -> int:
        """Rows of ``model`` that wait."""
        return self._rows.get(model, 0)

    def has_room_behind(self, model: str, rows: int) -> bool:
        """Whether half of the line stays free with ``rows`` in it; more than that half may only enter an empty line."""
        waiting = self._rows[model]
        return not waiting or waiting + rows <= self._settings[model].queue_rows // 2

    def join(self, tickets: list[Ticket]) -> None:
        """Puts the tickets of one request in line: all of them, or none with the reason."""
        model, rows = tickets[0].model, sum(t.num_rows for t in tickets)
        limit = self._settings[model].queue_rows
        with self._changed:
            if self._closed:
                raise ShuttingDown
            if rows > limit:
                raise TooManyRows(model, rows, limit)
            if self._rows[model] + rows > limit:
                raise QueueFull(model, self._rows[model], limit, self.retry_after_s(model))
            if not self._rows[model]:  # one that was idle has saved up no right to the device
                busy = [self._spent[name] for name, waiting in self._rows.items() if waiting]
                self._spent[model] = max(self._spent[model], min(busy, default=0.0))
            for ticket in tickets:
                self._put(ticket)
            self._changed.notify_all()
        for ticket in tickets:
            ticket.future.add_done_callback(partial(self._left, weakref.ref(ticket)))

    def rejoin(self, tickets: list[Ticket]) -> None:
        """Puts tickets back at the front, though the line be full or closed: they were accepted."""
        with self._changed:
            for ticket in reversed(tickets):
                self._put(ticket, front=True)
            self._changed.notify_all()

    def _put(self, ticket: Ticket, *, front: bool = False) -> None:
        waiting = self._waiting.setdefault(ticket.key, deque())
        if front:
            waiting.appendleft(ticket)
        else:
            waiting.append(ticket)
        self._rows[ticket.model] += ticket.num_rows

    def _left(self, known: weakref.ref[Ticket], done: Future[Rows]) -> None:
        """Hears of a ticket whose future is done; it is known weakly, or ticket and future would keep each other."""
        ticket = known()
        if ticket is not None and done.cancelled():
            self.leave(ticket)

    def leave(self, ticket: Ticket) -> None:
        """Takes out a ticket whose client has gone; one that is not in line any more is left alone."""
        with self._changed:
            waiting = self._waiting.get(ticket.key)
            if waiting and ticket in waiting:
                waiting.remove(ticket)
                self._took(ticket)

    def _took(self, ticket: Ticket) -> None:
        self._rows[ticket.model] -= ticket.num_rows
        if not self._waiting[ticket.key]:
            del self._waiting[ticket.key]

    def pick(self, now: float, *, busy: bool = False) -> Turn:
        """What may leave at ``now``; tickets in a batch can no longer be cancelled, expired ones never reach a model.

        Among the batches that are ready, that of the model that has had the least device time goes first. For a device
        that is busy only full ones are: others may still grow until it is free.
        """
        with self._changed:
            expired = [t for waiting in self._waiting.values() for t in waiting if t.deadline <= now]
            for ticket in expired:
                self._waiting[ticket.key].remove(ticket)
                self._took(ticket)
            while True:
                ready = [key for key in self._waiting if self._ready_at(key, busy) <= now]
                if not ready:
                    break
                key = min(ready, key=lambda key: (self._spent[key[0]], self._waiting[key][0].arrived))
                batch = [t for t in self._cut(key) if t.future.running() or t.future.set_running_or_notify_cancel()]
                if batch:
                    return Turn(batch, expired)
            if expired or not self._waiting:
                return Turn([], expired)
            soon = min(self._ready_at(key, busy) for key in self._waiting)
            soon = min(soon, *(t.deadline for waiting in self._waiting.values() for t in waiting))
            return Turn([], [], max(0.0, soon - now) if soon < math.inf else None)

    def _ready_at(self, key: Key, busy: bool) -> float:
        waiting, settings = self._waiting[key], self._settings[key[0]]
        full = sum(t.num_rows for t in waiting) >= self.batch_rows(key)
        if full or self._closed or waiting[0].deaths:
            return -math.inf
        return math.inf if busy else waiting[0].arrived + settings.max_delay_s

    def _cut(self, key: Key) -> list[Ticket]:
        """The tickets at the front that fit into one batch; one that a worker died with goes alone."""
        waiting, room = self._waiting[key], self.batch_rows(key)
        cut: list[Ticket] = []
        while waiting:
            ticket = waiting[0]
            if cut and (ticket.num_rows > room or ticket.deaths or cut[0].deaths):
                break
            cut.append(waiting.popleft())
            room -= ticket.num_rows
            self._rows[ticket.model] -= ticket.num_rows
        if not waiting:
            del self._waiting[key]
        return cut

    def next(self, clock: Clock, until: Callable[[], bool] | None = None) -> Turn | None:
        """The next turn, waited for; None when the line is closed and empty.

        ``until`` is for a device that is busy: when it says so, after a :meth:`poke`, the turn is empty.
        """
        with self._changed:
            while True:
                turn = self.pick(clock(), busy=until is not None)
                if turn.batch or turn.expired or (until is not None and until()):
                    return turn
                if self._closed and not self._waiting:
                    return None
                self._changed.wait(turn.wait_s)

    def poke(self) -> None:
        """Lets whoever waits for a turn look again."""
        with self._changed:
            self._changed.notify_all()

    def batch_rows(self, key: Key) -> int:
        """Rows of a full batch of this shape: what was asked for, or the fewer that memory had room for."""
        return min(self._settings[key[0]].batch_rows, self._caps.get(key, 1 << 30))

    def cap(self, key: Key, rows: int) -> None:
        """Lets batches of this shape have at most ``rows`` from now on."""
        with self._changed:
            self._caps[key] = max(1, min(rows, self.batch_rows(key)))

    def charge(self, model: str, seconds: float, rows: int) -> None:
        """Counts device time that ``model`` has had, and from it how fast its line moves."""
        with self._changed:
            self._spent[model] += seconds
            if rows:
                each = seconds / rows
                self._pace[model] = each if model not in self._pace else 0.8 * self._pace[model] + 0.2 * each

    def retry_after_s(self, model: str) -> float:
        """When half of the line should be through, at the pace seen; 1 second at least, as HTTP counts."""
        return float(min(60, max(1, math.ceil(self._pace.get(model, 0.0) * self._rows[model] / 2))))

    def empty(self) -> list[Ticket]:
        """Everything that waits, taken out: for when no device is left to run it."""
        with self._changed:
            out = [ticket for waiting in self._waiting.values() for ticket in waiting]
            self._waiting.clear()
            self._rows = dict.fromkeys(self._rows, 0)
            return out

    def close(self) -> None:
        """Takes no more requests; what waits leaves without waiting for company."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
