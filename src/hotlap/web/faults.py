"""Errors as answers over HTTP: the right status, one clear sentence, never a stack trace."""

from __future__ import annotations

import logging
import math

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from hotlap.base.errors import (
    DataError,
    EnvironmentUnusable,
    HotlapError,
    OutOfMemory,
    StorageError,
    TooLarge,
    UnknownName,
    UsageError,
    WorkerDied,
)
from hotlap.tools.serve.refusal import DeadlineExceeded, NotReady, QueueFull, ShuttingDown, TooManyRows

log = logging.getLogger("hotlap.web")
CLIENT_GONE = 499
"""What others write into their logs for it; nobody is left to read it."""

STATUSES: tuple[tuple[type[HotlapError], int], ...] = (
    (QueueFull, 429),
    (ShuttingDown, 503),
    (NotReady, 503),
    (WorkerDied, 503),
    (DeadlineExceeded, 504),
    (TooManyRows, 413),
    (OutOfMemory, 413),
    (TooLarge, 413),
    (UnknownName, 404),
    (DataError, 422),
    (UsageError, 400),
    (StorageError, 507),
    (EnvironmentUnusable, 500),
)
"""The first that fits decides."""


def status_of(error: HotlapError) -> int:
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 500)


def told(status: int, text: str, kind: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """The body of every error."""
    return JSONResponse({"error": text, "kind": kind}, status, headers=headers)


def explain(error: Exception) -> tuple[int, str, str, dict[str, str]]:
    """Status, sentence, kind and headers for whatever was raised; what was not foreseen is logged, not shown."""
    if isinstance(error, HotlapError):
        after = getattr(error, "retry_after_s", 1.0 if isinstance(error, WorkerDied) else None)
        headers = {"Retry-After": str(math.ceil(after))} if after is not None else {}
        return status_of(error), error.paragraph(), type(error).__name__, headers
    if isinstance(error, HTTPException):
        return error.status_code, str(error.detail), "HTTPException", dict(error.headers or {})
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return 422, f"{where}: {first['msg']}", "ValidationError", {}
    if isinstance(error, ClientDisconnect):
        return CLIENT_GONE, "The client has gone.", "ClientGone", {}
    log.error("a request failed in a way that was not foreseen", exc_info=error)
    return 500, "The service failed; its log says how.", "InternalError", {}


async def handle_fault(request: Request, error: Exception) -> JSONResponse:
    """The response to whatever a route raised."""
    del request
    return told(*explain(error))
