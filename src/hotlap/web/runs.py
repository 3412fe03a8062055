"""Past runs and their reports: what lies in the service's folder of runs, and nothing beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from hotlap.base.errors import RecordError, UnknownName
from hotlap.records.run import find_runs, load_record
from hotlap.web.protocol import FAULTS

MOST = 500
"""Runs that are listed, the newest first."""
REPORT = "report.html"
APART = (
    "default-src 'none'; img-src data:; font-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "form-action 'none'; frame-ancestors 'self'; sandbox allow-scripts"
)
"""A report's scripts run in a page of no origin: they reach neither the service nor what the browser keeps for it."""


def run_routes(root: Path) -> APIRouter:
    """The routes of one folder of runs."""
    routes = APIRouter(prefix="/api/v1/runs", tags=["runs"])
    known: dict[Path, tuple[float, dict[str, Any]]] = {}
    faults: dict[int | str, dict[str, Any]] = {status: FAULTS[status] for status in (400, 404, 422)}

    @routes.get("")
    async def runs() -> list[dict[str, Any]]:
        """The runs of this machine, newest first."""
        return await asyncio.to_thread(lambda: [_told(file, known) for file in list(find_runs(root))[:MOST]])

    @routes.get("/{name}/{stamp}/report", response_class=HTMLResponse, responses=faults)
    async def report(name: str, stamp: str) -> HTMLResponse:
        """A run's report; it is drawn where none was."""
        page = await asyncio.to_thread(_report, root, f"{name}/{stamp}")
        return HTMLResponse(page, headers={"Content-Security-Policy": APART, "X-Content-Type-Options": "nosniff"})

    return routes


def _name(file: Path) -> str:
    return f"{file.parent.parent.name}/{file.parent.name}"


def _told(file: Path, known: dict[Path, tuple[float, dict[str, Any]]]) -> dict[str, Any]:
    """What a record says in a line; read again only when it has changed."""
    changed = file.stat().st_mtime
    if file not in known or known[file][0] != changed:
        known[file] = (changed, _read(file))
    return {**known[file][1], "report": (file.parent / REPORT).is_file()}


def _read(file: Path) -> dict[str, Any]:
    said = {"run": _name(file), "tool": "", "target": "", "verdict": "", "when": "", "status": "unreadable"}
    try:
        record = load_record(file)
    except RecordError as error:
        return {**said, "verdict": error.what}
    verdict = record.verdict.headline if record.verdict else ""
    target = str(record.config.get("target") or record.name)
    return {
        **said, "tool": record.kind, "target": target, "verdict": verdict, "when": record.started_at,
        "status": record.status,
    }  # fmt: skip


def _report(root: Path, run: str) -> str:
    """The page of a run that is listed; what a client sends is compared with names and never becomes a path."""
    from hotlap.tools.report import render

    for file in find_runs(root):
        if _name(file) == run:
            drawn = file.parent / REPORT
            return drawn.read_text(encoding="utf-8") if drawn.is_file() else render([load_record(file)])
    raise UnknownName(f"unknown run {run!r}", remedy="GET /api/v1/runs lists them")
