"""The page of a service: files that the browser runs as they are, under rules that keep everything else out."""

from __future__ import annotations

import mimetypes
from pathlib import Path

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles
from starlette.responses import FileResponse, Response
from starlette.types import Scope

STATIC = Path(__file__).parent / "static"
RULES = "; ".join(
    (
        "default-src 'self'",
        "img-src 'self' blob: data:",
        "style-src 'self' 'unsafe-inline'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
"""Scripts come from this service only. Styles may be inline: reports that need a token are shown in a frame of the
page, which inherits its rules, and they bring their styles along."""
HEADERS = {
    "Content-Security-Policy": RULES,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class FreshFiles(StaticFiles):
    """Files that a browser asks for again, so that modules of two versions never meet; unchanged ones are not sent."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response


def add_page(app: FastAPI) -> None:
    """Serves the page at ``/`` and its files below ``/static``."""
    # Some systems call scripts text/plain, and browsers then refuse to run them as modules.
    mimetypes.add_type("text/javascript", ".js")
    app.mount("/static", FreshFiles(directory=STATIC), name="static")

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(STATIC / "index.html", headers=HEADERS)
