"""The HTTP face of a service: the Open Inference Protocol, pictures in and answers out, status and metrics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

import hotlap
from hotlap.base.errors import HotlapError
from hotlap.tools.serve import Service
from hotlap.tools.serve.job_runner import JobRunner
from hotlap.tools.serve.jobs import JobStore
from hotlap.web.editing import editing_routes
from hotlap.web.examples import add_examples
from hotlap.web.faults import handle_fault
from hotlap.web.guard import Guard, GuardSettings
from hotlap.web.head import HeadAsGet
from hotlap.web.job_routes import job_routes
from hotlap.web.page import add_page
from hotlap.web.pictures import picture_routes
from hotlap.web.protocol import HEADER_LENGTH, protocol_routes
from hotlap.web.reference_page import reference_routes
from hotlap.web.runs import run_routes
from hotlap.web.scenes import scene_routes
from hotlap.web.state import state_routes


@dataclass(frozen=True, kw_only=True)
class AppSettings:
    """What the face of a service can be told."""

    guard: GuardSettings = field(default_factory=GuardSettings)
    max_files: int = 64
    """Files in one batch request."""
    drain_s: float = 30.0
    runs: Path = Path("runs")
    """Folder whose runs and reports are shown."""


def create_app(
    service: Service,
    settings: AppSettings,
    on_ready: Callable[[], None] = lambda: None,
    store: JobStore | None = None,
) -> FastAPI:
    """The application; it starts the service and drains it with its own life. With a store it takes jobs, too."""
    jobs = JobRunner(service, store) if store is not None else None

    @contextlib.asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        beside = [asyncio.create_task(_tell_ready(service, on_ready))]
        beside += [asyncio.create_task(jobs.run())] if jobs is not None else []
        yield
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await asyncio.to_thread(service.drain, settings.drain_s)

    app = FastAPI(
        title="Hotlap",
        version=hotlap.__version__,
        summary="Models behind a bounded queue that really batches.",
        lifespan=life,
        docs_url=None,
        redoc_url=None,
    )
    for kind in (HotlapError, HTTPException, RequestValidationError, ClientDisconnect, Exception):
        app.add_exception_handler(kind, handle_fault)
    app.include_router(protocol_routes(service))
    app.include_router(picture_routes(service, settings.max_files))
    app.include_router(state_routes(service))
    app.include_router(scene_routes(service))
    app.include_router(editing_routes())
    app.include_router(run_routes(settings.runs))
    app.include_router(reference_routes())
    if store is not None and jobs is not None:
        app.include_router(job_routes(service, store, jobs, settings.max_files))
    app.add_middleware(Guard, settings=settings.guard)
    if settings.guard.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.guard.origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["Retry-After", HEADER_LENGTH, "Content-Disposition"],
        )
    app.add_middleware(HeadAsGet)
    add_page(app)
    add_examples(app, service)
    return app


async def _tell_ready(service: Service, on_ready: Callable[[], None]) -> None:
    while not service.is_ready and not service.failed:
        await asyncio.sleep(0.05)
    on_ready()
