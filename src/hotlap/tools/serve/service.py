"""The service without a web: bytes or tensors come in, wait, go through a model in batches, and are answered.

The door is asyncio. Decoding and finishing run in threads of a pool, models wherever their runner puts them, so the
loop only ever passes things on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hotlap.base.errors import HotlapError, ShapeError, UnknownName, UsageError, did_you_mean
from hotlap.measure.servable import TENSORS, Decoded, FileAnswer, Rows, Servable, Signature
from hotlap.tools.serve.config import LONGEST_S
from hotlap.tools.serve.counters import Counters, Labels
from hotlap.tools.serve.desk import Desk, LocalDesk
from hotlap.tools.serve.line import Clock, Line, LineSettings, Ticket
from hotlap.tools.serve.refusal import DeadlineExceeded, NotReady, QueueFull, ShuttingDown
from hotlap.tools.serve.worker import DeviceWorker

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("hotlap.serve")
GIVEN_UP_S = 1.0
"""For workers to end once nobody waits for what they do."""
LOOK_S = 0.02
"""How often work that nobody waits for looks whether there is room for it."""


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """How requests wait and for how long."""

    max_delay_s: float = 0.005
    """How long the first request of a batch waits for others."""
    queue_rows: int = 256
    """Rows of one model that may wait; more are refused."""
    deadline_s: float = 60.0
    """For a request that names none."""
    pool_threads: int = 4
    """Threads that decode and finish."""


@dataclass
class _Model:
    servable: Servable
    inside: int = 0
    """Requests between the door and their answer."""


class Service:
    """Models behind a bounded line; started once, drained once."""

    def __init__(
        self,
        servables: Mapping[str, Servable],
        runners: Sequence[Any],
        settings: ServiceSettings | None = None,
        *,
        desk: Desk | None = None,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Every runner holds all the models, on a device of its own; ``desk`` decodes and finishes, by default here."""
        self.settings = settings or ServiceSettings()
        self.counters, self.line, self._clock = Counters(), Line(), clock
        self._models = {name: _Model(servable) for name, servable in servables.items()}
        for name in servables:  # a monitor sees no rise of what was not there before
            for counter in ("shed_total", "expired_total", "oom_splits_total", "retried_total"):
                self.counters.count(counter, 0.0, model=name)
        for runner in runners:
            self.counters.count("worker_deaths_total", 0.0, device=runner.device)
        self.workers = [
            DeviceWorker(runner, self.line, self.counters, clock=clock, sleep=sleep, on_change=self._workers_changed)
            for runner in runners
        ]
        self._pool = ThreadPoolExecutor(self.settings.pool_threads, thread_name_prefix="hotlap-door")
        # Decoded pictures that wait for room are held in memory: no more than the pool can make at a time.
        self._behind = asyncio.Semaphore(self.settings.pool_threads)
        self._desk = desk or LocalDesk(servables)
        self._desk_ready, self._desk_failed = False, ""
        self._changed = threading.Condition()
        self.leaving = False
        """Told to stop: not ready any more, though what comes over open connections is still answered."""
        self.draining = False
        self._given_up = False
        self._limits: set[asyncio.Timeout] = set()
        """Of the requests that are being answered."""

    def start(self) -> None:
        """Begins to load the models; :meth:`why_not_ready` tells how far it is."""
        for worker in self.workers:
            worker.start()
        threading.Thread(target=self._start_desk, name="hotlap-desk", daemon=True).start()

    def _start_desk(self) -> None:
        try:
            self._desk.start()
        except Exception as error:  # a service that cannot finish an answer cannot serve
            log.error("decoding and finishing cannot start", exc_info=error)
            self._desk_failed = str(error)
        with self._changed:
            self._desk_ready = not self._desk_failed
            self._changed.notify_all()

    def _workers_changed(self) -> None:
        for worker in self.workers:
            for name, signature in worker.signatures.items():
                rows = min(w.signatures[name].rows for w in self.workers if name in w.signatures)
                self.line.open(name, self._line_settings(signature, rows))
        if all(worker.failed for worker in self.workers):
            for ticket in self.line.empty():
                if ticket.future.running() or ticket.future.set_running_or_notify_cancel():
                    ticket.future.set_exception(NotReady(ticket.model, self.workers[0].state))
        with self._changed:
            self._changed.notify_all()

    def _line_settings(self, signature: Signature, rows: int) -> LineSettings:
        queue_rows = max(self.settings.queue_rows, signature.rows)
        return LineSettings(batch_rows=rows, max_delay_s=self.settings.max_delay_s, queue_rows=queue_rows)

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Whether a worker became ready in time; False also when all have failed."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_ready or bool(self.failed), timeout_s)
        return self.is_ready

    @property
    def failed(self) -> str:
        """Why nothing can be served, ever; '' where something can."""
        lost = [worker.state.partition(": ")[2] for worker in self.workers if worker.failed]
        return self._desk_failed or (lost[0] if len(lost) == len(self.workers) else "")

    @property
    def refused(self) -> UsageError | None:
        """What is wrong with the models themselves, where nothing can be served because of it."""
        return next((worker.refused for worker in self.workers if worker.refused), None) if self.failed else None

    @property
    def is_ready(self) -> bool:
        staying = not (self.leaving or self.draining)
        return staying and self._desk_ready and any(worker.state == "ready" for worker in self.workers)

    @property
    def models(self) -> list[str]:
        return list(self._models)

    def servable(self, model: str) -> Servable:
        """The servable of that name; an unknown name is an error that lists the known ones."""
        if model not in self._models:
            raise UnknownName(f"unknown model {model!r}", remedy=did_you_mean(model, self._models))
        return self._models[model].servable

    def signature(self, model: str) -> Signature:
        """What a model takes and gives; an error while no worker has loaded it."""
        self.servable(model)
        for worker in self.workers:
            if model in worker.signatures:
                return worker.signatures[model]
        raise NotReady(model, ", ".join(f"{worker.device} is {worker.state}" for worker in self.workers))

    async def answer(
        self, model: str, body: bytes, options: Mapping[str, Any] | None = None, deadline_s: float | None = None
    ) -> dict[str, Any]:
        """The finished answer to a client's bytes."""
        said, _ = await self._answered(model, body, options or {}, deadline_s)
        answer: dict[str, Any] = json.loads(_as_text(model, said))
        return answer

    async def answer_json(
        self,
        model: str,
        body: bytes,
        options: Mapping[str, Any] | None = None,
        deadline_s: float | None = None,
        *,
        behind: bool = False,
    ) -> bytes:
        """The same as JSON text, with ``seconds``: where the time went. It is never taken apart in this process.

        ``behind`` is for what nobody waits for: it stands back until half of the line stays free for others.
        """
        said, seconds = await self._answered(model, body, options or {}, deadline_s, behind)
        text = _as_text(model, said)
        comma = b"," if text != b"{}" else b""
        return b"".join([b'{"seconds":', json.dumps(seconds).encode(), comma, memoryview(text)[1:]])

    async def answer_file(
        self, model: str, body: bytes, options: Mapping[str, Any] | None = None, deadline_s: float | None = None
    ) -> FileAnswer:
        """The answer of a model that gives files."""
        said, _ = await self._answered(model, body, options or {}, deadline_s)
        if not isinstance(said, FileAnswer):
            raise UsageError(f"model {model!r} answers with no file", expected="another model or route")
        return said

    async def _answered(
        self, model: str, body: bytes, options: Mapping[str, Any], deadline_s: float | None, behind: bool = False
    ) -> tuple[bytes | FileAnswer, dict[str, float]]:
        self.servable(model)
        signature, marks = self.signature(model), [self._clock()]
        async with self._request(model, deadline_s) as deadline:
            async with self._behind if behind else contextlib.nullcontext():
                decoded: Decoded = await self._aside("decode", model, body, options, signature)
                marks.append(self._clock())
                while behind and not self.line.has_room_behind(model, int(decoded.rows[0].shape[0])):
                    await asyncio.sleep(LOOK_S)
            out = await self._through(model, decoded.rows, deadline)
            marks.append(self._clock())
            said: bytes | FileAnswer = await self._aside("finish", model, out, decoded.facts, options)
            marks.append(self._clock())
        parts = zip(("decode", "model", "finish"), marks, marks[1:], strict=False)
        return said, {**{name: end - begin for name, begin, end in parts}, "all": marks[-1] - marks[0]}

    async def infer(self, model: str, rows: Rows, deadline_s: float | None = None) -> Rows:
        """The model's raw outputs for tensors whose first dimension counts rows."""
        check_rows(model, rows, self.signature(model))
        async with self._request(model, deadline_s) as deadline:
            return await self._through(model, rows, deadline)

    async def _aside(self, what: str, model: str, *arguments: Any) -> Any:
        """What a desk gives that is asked to decode or to finish, in a thread of the pool."""
        loop, asked = asyncio.get_running_loop(), self._clock()
        return await loop.run_in_executor(self._pool, self._at_desk, what, asked, model, *arguments)

    def _at_desk(self, what: str, asked: float, model: str, *arguments: Any) -> Any:
        work: Callable[..., Any] = self._desk.decode if what == "decode" else self._desk.finish
        began = self._clock()
        self.counters.observe("desk_wait_seconds", began - asked, model=model)
        try:
            return work(model, *arguments)
        finally:
            self.counters.observe(f"{what}_seconds", self._clock() - began, model=model)

    @contextlib.asynccontextmanager
    async def _request(self, model: str, deadline_s: float | None) -> AsyncIterator[float]:
        """Counts a request in and out; gives its deadline. A flood is refused here, before anything is decoded."""
        allowed_s = self.settings.deadline_s if deadline_s is None else deadline_s
        if not 0 < allowed_s <= LONGEST_S:
            raise UsageError(f"deadline = {allowed_s:g} s", expected=f"more than 0 and at most {LONGEST_S:g} seconds")
        if self.draining:
            raise ShuttingDown
        entry, began, ended = self._models[model], self._clock(), "error"
        limit = 2 * self.line.settings(model).queue_rows
        entry.inside += 1
        try:
            if entry.inside > limit:
                raise QueueFull(model, self.line.depth(model), limit, self.line.retry_after_s(model))
            async with self._limited(allowed_s):
                yield began + allowed_s
            ended = "ok"
        except (TimeoutError, DeadlineExceeded):
            if self._given_up:
                ended = "refused"
                raise ShuttingDown from None
            ended = "expired"
            self.counters.count("expired_total", model=model)
            raise DeadlineExceeded(model, self._clock() - began) from None
        except QueueFull:
            ended = "shed"
            self.counters.count("shed_total", model=model)
            raise
        except asyncio.CancelledError:
            ended = "cancelled"
            raise
        except HotlapError as error:
            ended = "refused" if isinstance(error, UsageError) else "error"
            raise
        finally:
            entry.inside -= 1
            self.counters.count("requests_total", model=model, ended=ended)
            self.counters.observe("request_seconds", self._clock() - began, model=model)

    @contextlib.asynccontextmanager
    async def _limited(self, allowed_s: float) -> AsyncIterator[None]:
        """So many seconds, or as long as until :meth:`give_up`."""
        async with asyncio.timeout(allowed_s) as limit:
            self._limits.add(limit)
            try:
                yield
            finally:
                self._limits.discard(limit)

    def give_up(self) -> None:
        """Refuses, from the loop's own thread, what is still being answered: the time to drain is over."""
        self._given_up = self.draining = True
        now = asyncio.get_running_loop().time()
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(now)

    async def _through(self, model: str, rows: Rows, deadline: float) -> Rows:
        """The outputs of a request's rows, in batches no larger than the model's."""
        import torch

        if not any(not worker.failed for worker in self.workers):
            raise NotReady(model, self.workers[0].state)
        step, now = self.line.settings(model).batch_rows, self._clock()
        parts = [tuple(t[i : i + step] for t in rows) for i in range(0, rows[0].shape[0], step)]
        tickets = [Ticket(model, part, deadline, now) for part in parts]
        self.line.join(tickets)
        try:
            outputs = await asyncio.gather(*(asyncio.wrap_future(ticket.future) for ticket in tickets))
        finally:
            for ticket in tickets:
                ticket.future.cancel()  # what has not reached a model never will
        return outputs[0] if len(outputs) == 1 else tuple(torch.cat(column) for column in zip(*outputs, strict=True))

    def drain(self, timeout_s: float = 30.0) -> bool:
        """Takes no more requests, answers those accepted, ends the workers; whether all of that was done in time."""
        self.draining = True
        until = time.monotonic() + (min(timeout_s, GIVEN_UP_S) if self._given_up else timeout_s)
        while any(model.inside for model in self._models.values()) and time.monotonic() < until:
            time.sleep(0.01)
        self.line.close()
        ended = []
        for worker in self.workers:
            # One that still loads its models has nothing to answer; it ends by itself, or with this process.
            loads = worker.state in ("loading", "restarting")
            ended.append(worker.join(0.0 if loads else max(0.0, until - time.monotonic())))
        self._pool.shutdown(wait=False)
        self._desk.stop()
        return all(ended)

    def status(self) -> dict[str, Any]:
        """How things stand, as JSON."""
        return {
            "ready": self.is_ready,
            "draining": self.leaving or self.draining,
            "workers": [{"device": w.device, "state": w.state} for w in self.workers],
            "models": {name: self._model_status(name) for name in self._models},
        }

    def _model_status(self, name: str) -> dict[str, Any]:
        loaded = [worker.signatures[name] for worker in self.workers if name in worker.signatures]
        value, mean, servable = self.counters.value, self.counters.mean, self._models[name].servable
        answers = getattr(servable, "answers", lambda signature: TENSORS)
        return {
            "ready": bool(loaded) and self.is_ready,
            "answers": answers(loaded[0]) if loaded else None,
            "threshold": getattr(servable, "threshold", 0.5),
            "arm": loaded[0].arm if loaded else None,
            "batch_rows": loaded[0].rows if loaded else None,
            "queued_rows": self.line.depth(name),
            "requests": value("requests_total", model=name),
            "shed": value("shed_total", model=name),
            "oom_splits": value("oom_splits_total", model=name),
            "mean_batch_rows": mean("batch_rows", model=name),
            "mean_queue_s": mean("queue_seconds", model=name),
            "mean_request_s": mean("request_seconds", model=name),
        }

    def gauges(self) -> list[tuple[str, str, Labels, float]]:
        """What is true now, for the metrics page."""
        depth = [("queue_rows", "Rows that wait", (("model", n),), float(self.line.depth(n))) for n in self._models]
        inside = [
            ("requests_inside", "Requests being served", (("model", name),), float(model.inside))
            for name, model in self._models.items()
        ]
        ready = [
            ("worker_ready", "1 where a device is ready", (("device", w.device),), float(w.state == "ready"))
            for w in self.workers
        ]
        return [*depth, *inside, *ready]


def _as_text(model: str, said: bytes | FileAnswer) -> bytes:
    if isinstance(said, FileAnswer):
        raise UsageError(
            f"model {model!r} answers with a file", expected="another route: /api/v1/render or /api/v1/mesh"
        )
    return said


def check_rows(model: str, rows: tuple[Tensor, ...], signature: Signature) -> None:
    """Refuses tensors that the model does not take, by name."""
    if len(rows) != len(signature.inputs):
        wanted = ", ".join(spec.name for spec in signature.inputs)
        raise ShapeError(f"model {model!r} got {len(rows)} inputs", expected=f"{len(signature.inputs)}: {wanted}")
    for spec, tensor in zip(signature.inputs, rows, strict=True):
        fits = tensor.ndim == len(spec.shape) + 1 and all(
            want in (-1, got) for want, got in zip(spec.shape, tensor.shape[1:], strict=True)
        )
        empty = math.prod(tensor.shape) == 0 and 0 not in spec.shape
        if not fits or tensor.shape[0] < 1 or empty:
            want_text = ", ".join(["rows", *(str(size) for size in spec.shape)])
            raise ShapeError(f"input {spec.name!r} of model {model!r} has shape {list(tensor.shape)}",
                             expected=f"[{want_text}] with one row or more")  # fmt: skip
        if str(tensor.dtype).removeprefix("torch.") != spec.dtype:
            raise ShapeError(f"input {spec.name!r} of model {model!r} is {tensor.dtype}", expected=spec.dtype)
    counts = {int(tensor.shape[0]) for tensor in rows}
    if len(counts) > 1:
        raise ShapeError(f"the inputs of model {model!r} have {sorted(counts)} rows", expected="the same for all")
