"""The interface's own page at ``/docs``: drawn from openapi.json by files of ours, so it works without a network."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException

FOLDER = Path(__file__).parent / "reference"
ASSETS = {"reference.js": "text/javascript", "reference.css": "text/css"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob:; "
    "frame-ancestors 'none'; form-action 'none'; base-uri 'none'"
)


def reference_routes() -> APIRouter:
    """The page and what it is made of; it holds nothing of the service, and asks for the description itself."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/docs")
    async def page() -> FileResponse:
        return FileResponse(FOLDER / "index.html", headers={"Content-Security-Policy": POLICY})

    @routes.get("/docs/{name}")
    async def asset(name: str) -> FileResponse:
        if name not in ASSETS:
            raise HTTPException(404, "Not Found")
        return FileResponse(FOLDER / name, media_type=ASSETS[name])

    return routes
