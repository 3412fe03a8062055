"""Connections whose client neither asks nor reads: looked for now and then, so that no request pays for it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

PATIENCE_S = 30.0
"""How long the head of a request may take, from the connection or from its first byte after another's answer; and how
long a client may read nothing of its answer."""
LOOK_S = 5.0


def watch_clients(server: Any, limit_s: float = PATIENCE_S, look_s: float = LOOK_S) -> None:
    """Lets a server of uvicorn, which itself waits for ever, close connections of clients that do nothing."""
    slow = SlowClients(limit_s)

    async def look() -> None:
        slow.look(server.server_state.connections)

    server.config.callback_notify, server.config.timeout_notify = look, look_s


class SlowClients:
    """Remembers since when a connection waits for its client to send or to read."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since: dict[Any, tuple[tuple[int, Any], float]] = {}
        """By connection: what it waits for, and since when for that."""

    def look(self, connections: Iterable[Any]) -> None:
        """Closes those that have waited for one thing for too long; to be called every few seconds."""
        now, before, self._since = time.monotonic(), self._since, {}
        for connection in list(connections):
            num_unread = connection.transport.get_write_buffer_size()
            if not num_unread and not _is_between(connection):
                continue
            awaited = (num_unread, getattr(connection, "cycle", None))
            last, since = before.get(connection, (awaited, now))
            if last != awaited:
                since = now
            self._since[connection] = (awaited, since)
            if now - since > self._limit_s:
                connection.transport.abort()  # to close it would wait until all is read


def _is_between(connection: Any) -> bool:
    """Whether no request is being answered, and the time in which an idle connection may send one does not run."""
    if not hasattr(connection, "cycle") or connection.timeout_keep_alive_task is not None:
        return False
    return connection.cycle is None or bool(connection.cycle.response_complete)
