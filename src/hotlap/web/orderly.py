"""A server that ends when it is told to: what was accepted is answered, for so long, whatever other signals come."""

from __future__ import annotations

import asyncio
import signal
import time
from socket import socket
from types import FrameType

import uvicorn

from hotlap.tools.serve import Service

AGAIN_S = 1.0
"""A second Ctrl-C within this is the first one: 'timeout -s INT', and terminals, send several to a group at once."""
LAST_WORD_S = 1.0
"""For those who are refused at the end, to be told so."""
_LOOK_S = 0.05
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class OrderlyServer(uvicorn.Server):
    """Drains at the first signal; when the time for that is over, or at a second Ctrl-C, refuses what still waits.

    uvicorn itself would cancel it, or leave its application without an end, and print the insides of both.
    """

    def __init__(self, config: uvicorn.Config, service: Service, drain_s: float) -> None:
        config.timeout_graceful_shutdown = int(drain_s + LAST_WORD_S) + 2  # for what does not even hear that it is cut
        super().__init__(config)
        self._service, self._drain_s = service, drain_s
        self._told_at, self._is_hurried = 0.0, False

    def run(self, sockets: list[socket] | None = None) -> None:
        for each in _SIGNALS:
            signal.signal(each, self.handle_exit)  # also while uvicorn does not listen to them yet
        try:
            super().run(sockets)
        finally:
            for each in _SIGNALS:
                signal.signal(each, signal.SIG_IGN)  # the process ends by itself, and has still to say what it did

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            self._told_at = time.monotonic()
        elif sig == signal.SIGINT and time.monotonic() - self._told_at > AGAIN_S:
            self._is_hurried = True
        self.should_exit = self._service.leaving = True

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        ending = asyncio.create_task(self._give_up_in_time())
        await super().shutdown(sockets)
        ending.cancel()

    async def _give_up_in_time(self) -> None:
        until = time.monotonic() + self._drain_s
        while time.monotonic() < until and not self._is_hurried:
            await asyncio.sleep(_LOOK_S)
        self._service.give_up()
        await asyncio.sleep(LAST_WORD_S)
        for connection in list(self.server_state.connections):
            connection.transport.abort()  # of clients that are still sending, or do not read
