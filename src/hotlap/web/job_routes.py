"""Jobs of many files over HTTP: begun, watched, cancelled, tried again, their results fetched."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from hotlap.base.errors import DataError, UnknownName
from hotlap.tools.serve import Service
from hotlap.tools.serve.job_runner import JobRunner
from hotlap.tools.serve.jobs import JobStore
from hotlap.web.pictures import JOB_FILES, read_files, read_form, read_options
from hotlap.web.protocol import FAULTS, FULL

LIVE = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""Lets no proxy keep events, nor hold them back until there are many."""
LOOK_S = 0.25
"""How often a watched job is looked at."""


def job_routes(service: Service, store: JobStore, runner: JobRunner, max_files: int) -> APIRouter:
    """The routes of one service."""
    routes = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])

    @routes.post("", status_code=202, openapi_extra=JOB_FILES, responses={**FAULTS, 507: FULL})
    async def begin(request: Request) -> dict[str, Any]:
        """Takes files to be run as there is room; they are on disk when this answers, and survive a restart."""
        if not request.headers.get("content-type", "").startswith("multipart/form-data"):
            raise DataError("the body is no form", expected="multipart/form-data with a field 'files'")
        async with read_form(request, max_files) as form:
            options = read_options(service, form)
            files = await read_files(form, "files")
        job = await asyncio.to_thread(store.add, options.model, options.given, files)
        runner.wake()
        return await asyncio.to_thread(store.status, job)

    @routes.get("")
    async def every() -> dict[str, Any]:
        """Every job, newest first."""
        return {"jobs": await asyncio.to_thread(store.jobs)}

    @routes.get("/{job}", responses={404: FAULTS[404]})
    async def status(job: str) -> dict[str, Any]:
        """How far a job is."""
        return await asyncio.to_thread(store.status, job)

    @routes.get("/{job}/results", responses={404: FAULTS[404]})
    async def results(job: str) -> dict[str, Any]:
        """What is known of each file so far."""
        return {"results": await asyncio.to_thread(store.results, job)}

    @routes.get("/{job}/events", response_class=StreamingResponse, responses={404: FAULTS[404]})
    async def events(job: str) -> StreamingResponse:
        """The job's progress as server-sent events, until it is over or deleted, or the service shuts down."""
        await asyncio.to_thread(store.status, job)
        return StreamingResponse(_progress(service, store, job), media_type="text/event-stream", headers=LIVE)

    @routes.post("/{job}/cancel", responses={404: FAULTS[404]})
    async def cancel(job: str) -> dict[str, Any]:
        """Lets no more of its files begin, and takes back those that wait for the model."""
        await asyncio.to_thread(store.cancel, job)
        runner.cancel(job)
        return await asyncio.to_thread(store.status, job)

    @routes.post("/{job}/retry", responses={404: FAULTS[404]})
    async def retry(job: str) -> dict[str, Any]:
        """Runs what failed, or was cancelled, again."""
        status = await asyncio.to_thread(store.retry, job)
        runner.wake()
        return status

    @routes.delete("/{job}", status_code=204, responses={404: FAULTS[404]})
    async def delete(job: str) -> Response:
        """Forgets the job and its results."""
        await asyncio.to_thread(store.delete, job)
        runner.cancel(job)
        return Response(status_code=204)

    return routes


async def _progress(service: Service, store: JobStore, job: str) -> AsyncIterator[str]:
    before = None
    while not service.leaving:
        try:
            status = await asyncio.to_thread(store.status, job)
        except UnknownName:
            return
        if status != before:
            yield f"event: progress\ndata: {json.dumps(status)}\n\n"
        if status["state"] != "running":
            return
        before = status
        await asyncio.sleep(LOOK_S)
