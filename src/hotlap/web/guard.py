"""What every request passes first: is the caller allowed, and is the body neither too large nor too slow?"""

from __future__ import annotations

import asyncio
import hmac
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotlap.web.faults import told

LOOPBACK = ("127.0.0.1", "localhost", "::1")
OPEN_PATHS = ("/v2/health/live", "/v2/health/ready", "/healthz", "/", "/docs")
"""Answered to anyone: orchestrators ask without a token, and health and pages hold nothing."""


@dataclass(frozen=True, kw_only=True)
class GuardSettings:
    """Who may call, and how much may be sent."""

    token: str = ""
    """'' asks for none."""
    origins: tuple[str, ...] = ()
    """Pages of other sites that may call."""
    only_loopback: bool = True
    """Whether the name in the Host header must be this machine's own, against pages that rebind a name."""
    max_body_bytes: int = 64 * 2**20
    idle_s: float = 30.0
    """How long the next part of a body may take."""


class TooLarge(Exception):
    """The body grew over its limit while it was read."""


class TooSlow(Exception):
    """The next part of the body did not come."""


class Guard:
    """The middleware."""

    def __init__(self, app: ASGIApp, settings: GuardSettings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await told(*refusal)(scope, receive, send)
            return
        began = False

        async def watched_send(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await self._app(scope, self._measured(receive), watched_send)
        except (TooLarge, TooSlow) as error:
            if began:
                raise
            status, text = (413, self._too_large()) if isinstance(error, TooLarge) else (408, self._too_slow())
            await told(status, text, type(error).__name__, {"Connection": "close"})(scope, receive, send)

    def _too_large(self) -> str:
        return f"The body is larger than {self._settings.max_body_bytes} bytes. Send less at once."

    def _too_slow(self) -> str:
        return f"No part of the body came for {self._settings.idle_s:g} s."

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str, str, dict[str, str]] | None:
        host = _split(f"//{headers.get('host', '')}")[0]
        if self._settings.only_loopback and host not in LOOPBACK:
            return 403, f"host = {headers.get('host', '')!r} is not this machine.", "WrongHost", {}
        origin = headers.get("origin", "")
        own = _split(origin)[1] == headers.get("host")
        if origin and not own and origin not in self._settings.origins and "*" not in self._settings.origins:
            return 403, f"origin = {origin!r} may not call. --cors allows it.", "WrongOrigin", {}
        pages = ("/static/", "/docs/")
        public = scope["path"] in OPEN_PATHS or scope["path"].startswith(pages)
        if self._settings.token and not public and scope["method"] != "OPTIONS":
            scheme, _, sent = headers.get("authorization", "").partition(" ")
            # Headers arrive as Latin-1, whatever they were sent as; the name of a scheme may be written in any case.
            same = hmac.compare_digest(sent.encode("latin-1"), self._settings.token.encode())
            if scheme.lower() != "bearer" or not same:
                return (
                    401,
                    "A token is needed: 'Authorization: Bearer TOKEN'.",
                    "NoToken",
                    {"WWW-Authenticate": "Bearer"},
                )
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._settings.max_body_bytes:
            return 413, self._too_large(), "TooLarge", {"Connection": "close"}
        return None

    def _measured(self, receive: Receive) -> Receive:
        """``receive`` that stops at the limits; once the body is whole, waiting means waiting for the client to go."""
        seen, whole = 0, False

        async def measured() -> Message:
            nonlocal seen, whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout(self._settings.idle_s):
                    message = await receive()
            except TimeoutError:
                raise TooSlow from None
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                whole = not message.get("more_body", False)
                if seen > self._settings.max_body_bytes:
                    raise TooLarge
            return message

        return measured


def _split(address: str) -> tuple[str, str]:
    """The name in an address, and the name with its port; '' where there is none, or nothing that could be one."""
    try:
        parts = urlsplit(address)
        return parts.hostname or "", parts.netloc
    except ValueError:  # such as a bracket that is never closed
        return "", ""
