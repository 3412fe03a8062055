"""Runs the files of stored jobs beside the requests of clients, in the same batches."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from hotlap.base.errors import HotlapError, StorageError, UsageError
from hotlap.tools.serve.jobs import JobStore, Work
from hotlap.tools.serve.refusal import NotReady, QueueFull, ShuttingDown
from hotlap.tools.serve.service import Service

log = logging.getLogger("hotlap.serve")
DEADLINE_S = 86400.0
"""For a file of a job: nobody waits for it at a screen, and most of its time it stands in line behind its own job."""


class JobRunner:
    """Takes what waits in a store through a service, a bounded number of files at a time."""

    def __init__(self, service: Service, store: JobStore, *, look_s: float = 1.0) -> None:
        """``look_s`` is how often the store is looked at when nobody calls :meth:`wake`."""
        self._service, self._store, self._look_s = service, store, look_s
        # Half of the line stays free for clients who wait at their screens.
        self._at_once = max(1, service.settings.queue_rows // 2)
        self._woken = asyncio.Event()
        self._answering: dict[asyncio.Task[bytes], str] = {}
        """Files on their way through the service, with their jobs."""

    def cancel(self, job: str) -> None:
        """Takes a job's files out of the service; they wait again, until the job is retried."""
        for answering, of in self._answering.items():
            if of == job:
                answering.cancel()

    def wake(self) -> None:
        """Says that something was added."""
        self._woken.set()

    async def run(self) -> None:
        """Works until it is cancelled; files that are not done by then wait for the next start."""
        running: set[asyncio.Task[None]] = set()
        try:
            while True:
                self._woken.clear()
                room = self._at_once - len(running)
                ready = self._service.is_ready and room
                taken = await self._stored(self._store.take, room) if ready else []
                for work in taken:
                    task = asyncio.create_task(self._run_one(work))
                    running.add(task)
                    task.add_done_callback(running.discard)
                    task.add_done_callback(lambda _: self._woken.set())
                if not taken:
                    await self._wait()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _stored(self, change: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """What a change of the store gives; tried until it works, for a disk that is full may have room again."""
        while True:
            try:
                return await asyncio.to_thread(change, *arguments, **named)
            except StorageError as error:
                log.error("%s", error)
                await asyncio.sleep(self._look_s)

    async def _wait(self) -> None:
        # Not asyncio.wait_for: before Python 3.12 that forgets a cancellation which comes with the waking, and the
        # service that ends would wait for this for ever.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._look_s):
                await self._woken.wait()

    async def _run_one(self, work: Work) -> None:
        try:
            options: dict[str, Any] = {**work.options, "filename": work.name}
            answer = await self._answered(work, options)
        except (QueueFull, ShuttingDown, NotReady) as error:
            await asyncio.sleep(error.retry_after_s)
            await self._stored(self._store.put_back, work)
        except asyncio.CancelledError:
            await asyncio.to_thread(self._store.put_back, work)
            raise
        except HotlapError as error:
            again = not isinstance(error, UsageError)
            await self._stored(self._store.fail, work, error.paragraph(), again=again)
        except Exception as error:  # one file must not stop the others; the log has the rest
            log.error("a file of job %s failed in a way that was not foreseen", work.job, exc_info=error)
            await self._stored(self._store.fail, work, "The service failed; its log says how.", again=False)
        else:
            await self._stored(self._store.finish, work, answer)

    async def _answered(self, work: Work, options: dict[str, Any]) -> bytes:
        """The answer to one file. It is a task of its own: a cancelled job ends this, and not what is being stored."""
        asked = self._service.answer_json(work.model, work.body, options, DEADLINE_S, behind=True)
        answering = asyncio.create_task(asked)
        self._answering[answering] = work.job
        try:
            return await answering
        finally:
            del self._answering[answering]
