"""Pictures in, answers out: one at a time or many, as form data or as the body itself."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

from hotlap.base.errors import DataError, TooLarge, UsageError
from hotlap.tools.serve import Service
from hotlap.web.faults import explain
from hotlap.web.leaving import while_connected
from hotlap.web.protocol import FAULTS

_OPTIONS: dict[str, Any] = {
    "model": {
        "type": "string",
        "description": "A served model; may be left out where there is one only.",
        "example": "hrnet",
    },
    "threshold": {"type": "number", "minimum": 0, "maximum": 1, "default": 0.5},
    "um_per_px": {"type": "number", "exclusiveMinimum": 0, "description": "Micrometres a pixel, for metrics."},
    "class": {"type": "integer", "minimum": 0, "description": "Of a model that tells classes: that one's objects."},
    "deadline_s": {"type": "number", "description": "Seconds after which the answer is not wanted any more."},
}
_FILE = {"type": "string", "format": "binary"}
MOST_FIELDS = 16
"""Of a form, beside its files."""


def _form(files: Mapping[str, Any], others: Mapping[str, Any], options: Mapping[str, Any] = _OPTIONS) -> dict[str, Any]:
    schema = {"type": "object", "required": list(files), "properties": {**files, **options}}
    return {"required": True, "content": {"multipart/form-data": {"schema": schema}, **others}}


_QUERY = [
    {"name": name, "in": "query", "required": False, "schema": {"type": said["type"]}}
    for name, said in _OPTIONS.items()
]
SEGMENT = {"requestBody": _form({"file": _FILE}, {"image/*": {"schema": _FILE}}), "parameters": _QUERY}
_FILES = {"files": {"type": "array", "items": _FILE}}
MANY_FILES = {"requestBody": _form(_FILES, {})}
JOB_FILES = {"requestBody": _form(_FILES, {}, {k: v for k, v in _OPTIONS.items() if k != "deadline_s"})}
"""Nobody waits for a job, so it has no deadline."""


@dataclass(frozen=True)
class Options:
    """What a client may say about its pictures."""

    model: str
    given: dict[str, Any]
    """What the model's servable is told: threshold, um_per_px, class."""
    deadline_s: float | None


def picture_routes(service: Service, max_files: int) -> APIRouter:
    """The routes of one service."""
    routes = APIRouter(prefix="/api/v1", tags=["pictures"])

    @routes.post("/segment", openapi_extra=SEGMENT, responses=FAULTS)
    async def segment(request: Request) -> Response:
        """One picture through a model: as the field 'file' of a form, or as the body with options in the query."""
        if not request.headers.get("content-type", "").startswith("multipart/form-data"):
            options = _options(service, request.query_params)
            return _json(await while_connected(request, _answer(service, await request.body(), "upload", options)))
        async with read_form(request, 1) as form:
            (upload,) = _files(form, "file")
            options = _options(service, {**request.query_params, **read_fields(form)})
            work = _answer(service, await upload.read(), upload.filename or "upload", options)
            return _json(await while_connected(request, work))

    @routes.post("/batch-segment", openapi_extra=MANY_FILES, responses=FAULTS)
    async def batch_segment(request: Request) -> Response:
        """Many pictures at once; each has its own answer or error, and one bad file costs no other."""
        if not request.headers.get("content-type", "").startswith("multipart/form-data"):
            raise DataError("the body is no form", expected="multipart/form-data with a field 'files'")
        async with read_form(request, max_files) as form:
            options = read_options(service, form)
            named = await read_files(form, "files")
            began = time.monotonic()
            work = asyncio.gather(*(_one_of_many(service, body, name, options) for name, body in named))
            results = await while_connected(request, _gathered(work))
        return _summed_up(results, time.monotonic() - began)

    return routes


def _json(text: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(text, status, media_type="application/json", headers=headers)


async def _gathered(work: Any) -> list[_One]:
    return list(await work)


async def _answer(service: Service, body: bytes, name: str, options: Options) -> bytes:
    return await service.answer_json(options.model, body, {**options.given, "filename": name}, options.deadline_s)


@dataclass(frozen=True)
class _One:
    """The answer to one of many files."""

    text: bytes
    good: bool
    retry_after_s: int | None = None


async def _one_of_many(service: Service, body: bytes, name: str, options: Options) -> _One:
    try:
        answer = await _answer(service, body, name, options)
        return _One(_head({"filename": name, "success": True}, b",") + answer[1:], True)
    except Exception as error:  # noqa: BLE001 - one file costs no other, whatever is wrong with it
        status, text, _, headers = explain(error)
        after = int(headers["Retry-After"]) if status == 429 else None
        shed = {} if after is None else {"retry_after_s": after}
        said = {"filename": name, "success": False, "status": status, "error": text, **shed}
        return _One(json.dumps(said).encode(), False, after)


def _head(said: dict[str, Any], end: bytes) -> bytes:
    """JSON text that goes on with what comes after ``end``."""
    return json.dumps(said)[:-1].encode() + end


def _summed_up(results: list[_One], seconds: float) -> Response:
    good = sum(one.good for one in results)
    said = {"total": len(results), "succeeded": good, "failed": len(results) - good, "processing_time": seconds}
    body = _head(said, b',"results":[') + b",".join(one.text for one in results) + b"]}"
    shed = [one.retry_after_s for one in results if one.retry_after_s is not None]
    if len(shed) == len(results):
        return _json(body, 429, {"Retry-After": str(max(shed))})
    return _json(body)


@asynccontextmanager
async def read_form(request: Request, most: int) -> AsyncIterator[FormData]:
    """The form of a request with at most ``most`` files; reading stops at the first that is too many."""
    try:
        form = await request.form(max_files=most, max_fields=MOST_FIELDS)
    except HTTPException as error:
        if not str(error.detail).startswith("Too many files"):
            raise
        raise TooLarge(
            "the form has too many files", expected=f"at most {most} in one request", remedy="Send fewer at once"
        ) from error
    try:
        yield form
    finally:
        await form.close()


def read_fields(form: FormData) -> dict[str, str]:
    """The fields of a form that are text."""
    return {key: value for key, value in form.items() if isinstance(value, str)}


def read_options(service: Service, form: FormData) -> Options:
    """The options in a form's fields."""
    return _options(service, read_fields(form))


async def read_files(form: FormData, field: str) -> list[tuple[str, bytes]]:
    """The files of a form, by name."""
    found = _files(form, field)
    return [(upload.filename or f"file {i}", await upload.read()) for i, upload in enumerate(found)]


def _files(form: FormData, field: str) -> list[UploadFile]:
    found = [value for value in form.getlist(field) if isinstance(value, UploadFile)]
    if not found:
        raise DataError(f"the form has no file {field!r}", expected=f"a field {field!r} with a file in it")
    return found


def _options(service: Service, given: Mapping[str, str]) -> Options:
    model = given.get("model") or (service.models[0] if len(service.models) == 1 else "")
    if not model:
        raise UsageError("model is not named", expected=f"one of {', '.join(service.models)}")
    service.servable(model)
    return Options(model, _given(service, model, given), read_number(given, "deadline_s", None))


def _given(service: Service, model: str, given: Mapping[str, str]) -> dict[str, Any]:
    threshold = read_number(given, "threshold", getattr(service.servable(model), "threshold", 0.5))
    if threshold is None or not 0 <= threshold <= 1:
        raise UsageError(f"threshold = {given.get('threshold')}", expected="0 to 1")
    said: dict[str, Any] = {"threshold": threshold}
    scale = read_number(given, "um_per_px", None)
    if scale is not None:
        if not 0 < scale < math.inf:
            raise UsageError(f"um_per_px = {given['um_per_px']}", expected="a number above 0")
        said["um_per_px"] = scale
    chosen = read_number(given, "class", None)
    if chosen is not None:
        if not 0 <= chosen < 2**31 or chosen != int(chosen):
            raise UsageError(f"class = {given['class']}", expected="a whole number from 0")
        said["class"] = int(chosen)
    return said


def read_number(given: Mapping[str, str], name: str, default: float | None) -> float | None:
    """A number that a client gives as text."""
    if name not in given or given[name] == "":
        return default
    try:
        return float(given[name])
    except ValueError:
        raise UsageError(f"{name} = {given[name]!r}", expected="a number") from None
