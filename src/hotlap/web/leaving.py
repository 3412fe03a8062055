"""Work for a client who may go: it is cancelled when the connection closes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.exceptions import HTTPException

from hotlap.web.faults import CLIENT_GONE

T = TypeVar("T")


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What ``work`` gives; it is cancelled, wherever it waits, when the client goes first.

    To be called once the body has been read: from then on the connection says only that it is gone.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise HTTPException(CLIENT_GONE, "The client has gone.")
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
