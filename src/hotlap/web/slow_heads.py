"""Connections whose next request never begins: looked for now and then, so that no request pays for it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

HEAD_S = 30.0
"""How long the head of a request may take, from the connection or from its first byte after another's answer."""
LOOK_S = 5.0


def watch_heads(server: Any, limit_s: float = HEAD_S, look_s: float = LOOK_S) -> None:
    """Lets a server of uvicorn, which itself waits for ever, close connections that send no whole head."""
    heads = SlowHeads(limit_s)

    async def look() -> None:
        heads.look(server.server_state.connections)

    server.config.callback_notify, server.config.timeout_notify = look, look_s


class SlowHeads:
    """Remembers since when a connection is between two requests."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since: dict[Any, tuple[Any, float]] = {}
        """By connection: the request before, and since when there is no other."""

    def look(self, connections: Iterable[Any]) -> None:
        """Closes those of which that has been so for too long; to be called every few seconds."""
        now, before, self._since = time.monotonic(), self._since, {}
        for connection in list(connections):
            if not _is_between(connection):
                continue
            last, since = before.get(connection, (connection.cycle, now))
            if last is not connection.cycle:
                since = now
            self._since[connection] = (connection.cycle, since)
            if now - since > self._limit_s:
                connection.transport.close()


def _is_between(connection: Any) -> bool:
    """Whether no request is being answered, and the time in which an idle connection may send one does not run."""
    if not hasattr(connection, "cycle") or connection.timeout_keep_alive_task is not None:
        return False
    return connection.cycle is None or bool(connection.cycle.response_complete)
