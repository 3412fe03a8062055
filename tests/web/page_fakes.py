"""A service that answers the page as the real one does, at once, and does as a test tells it."""

from __future__ import annotations

import contextlib
import io
import json
import math
import socket
import threading
import time
import zipfile

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from hotlap.web.page import add_page

FORMATS = [
    {"format": "labels", "label": "Label TIFF", "suffix": ".tif"},
    {"format": "csv", "label": "CSV", "suffix": ".csv"},
    {"format": "xlsx", "label": "Excel", "suffix": ".xlsx"},
    {"format": "coco", "label": "COCO", "suffix": ".json"},
    {"format": "yolo", "label": "YOLO-seg", "suffix": ".txt"},
    {"format": "roi", "label": "ImageJ ROI", "suffix": ".zip"},
    {"format": "geojson", "label": "GeoJSON", "suffix": ".geojson"},
]
RUNS = [
    {"run": "demo/20261115-101500", "tool": "lap", "target": "unet", "verdict": "faster", "report": True,
     "when": "2026-11-15T10:15:00"},
    {"run": "demo/20261114-093000", "tool": "bench", "target": "hrnet", "verdict": None, "report": False,
     "when": "2026-11-14T09:30:00"},
]  # fmt: skip
REPORT = "<!doctype html><title>report</title><h1>The lap of unet</h1>"


def ring_area(ring):
    return abs(sum(a[0] * b[1] - b[0] * a[1] for a, b in zip(ring, ring[1:] + ring[:1], strict=True))) / 2


def measured(thing):
    """Area and number of holes are enough to see that fresh measurements reach the table."""
    area = ring_area(thing["polygon"]) - sum(ring_area(hole) for hole in thing["holes"])
    return {**thing, "metrics": {"area": area, "num_holes": len(thing["holes"])}}


def square(number, left, top, side, **more):
    corners = [[left, top], [left + side, top], [left + side, top + side], [left, top + side]]
    return measured({"id": number, "polygon": corners, "holes": [], "confidence": 0.9, **more})


def wheel(number, x, y, radius, points):
    turns = [2 * math.pi * i / points for i in range(points)]
    ring = [[x + radius * math.cos(t), y + radius * math.sin(t)] for t in turns]
    return measured({"id": number, "polygon": ring, "holes": [], "confidence": 0.8})


class PageService:
    """What the service would know; tests change it."""

    def __init__(self):
        self.objects = {
            "squares": [square(1, 10, 10, 20), square(2, 60, 10, 30), square(3, 10, 50, 10, confidence=0.4)],
            "wheels": [square(1, 11, 10, 20), wheel(2, 150, 80, 12, 40)],
        }
        self.size = (200, 120)
        self.refuse = []
        """Answers to give before the next pictures are taken: (status, words, seconds to wait)."""
        self.asked = []
        """(path, what was sent) of every request that was answered."""
        self.token = ""
        self.seconds = 0.0

    def segment(self, name, body, model, threshold, um_per_px):
        """The answer to one picture; an object needs at least the threshold."""
        width, height = self.size
        found = [thing for thing in self.objects[model] if thing["confidence"] >= threshold]
        return {"model": model, "file": name, "width": width, "height": height, "threshold": threshold,
                "um_per_px": um_per_px, "objects": found, "seconds": {"all": 0.01}}  # fmt: skip

    def status(self):
        model = {"ready": True, "arm": "eager-fp32", "batch_rows": 8, "queued_rows": 0, "requests": 3, "shed": 0,
                 "oom_splits": 0, "mean_batch_rows": 2.5, "mean_queue_s": 0.01, "mean_request_s": 0.02}  # fmt: skip
        gpus = [{"name": "Card 9000", "memory_used_bytes": 2**33, "memory_bytes": 2**36}]
        workers = [{"device": f"cuda:{i}", "state": s} for i, s in enumerate(("ready", "restarting", "failed: gone"))]
        return {"ready": True, "draining": False, "workers": workers,
                "models": dict.fromkeys(self.objects, model), "gpus": gpus}  # fmt: skip


def page_app(service):
    """The real page over a service of fakes."""
    app = FastAPI()
    add_page(app)

    @app.middleware("http")
    async def guard(request: Request, go_on):
        inside = request.url.path.startswith("/api/")
        if inside and service.token and request.headers.get("authorization") != f"Bearer {service.token}":
            return JSONResponse({"error": "A token is needed.", "kind": "NoToken"}, 401)
        return await go_on(request)

    @app.get("/api/v1/status")
    def status():
        return service.status()

    @app.get("/api/v1/models")
    def models():
        said = [{"name": name, "answers": "objects", "threshold": 0.5} for name in service.objects]
        return {"models": [*said, {"name": "pixel2mesh", "answers": "mesh", "threshold": None}]}

    @app.post("/api/v1/segment")
    async def segment(request: Request):
        async with request.form() as form:
            name, body = form["file"].filename, await form["file"].read()
            model, threshold = form["model"], float(form["threshold"])
            scale = float(form["um_per_px"]) if "um_per_px" in form else None
        if service.refuse:
            code, words, after = service.refuse.pop(0)
            return JSONResponse({"error": words, "kind": "Refused"}, code, headers={"Retry-After": str(after)})
        time.sleep(service.seconds)
        service.asked.append(("segment", {"name": name, "model": model, "threshold": threshold}))
        if not body.startswith((b"\x89PNG", b"\xff\xd8", b"II*\0", b"MM\0*")):
            return JSONResponse({"error": f"{name} is no picture.", "kind": "DataError"}, 422)
        return service.segment(name, body, model, threshold, scale)

    @app.post("/api/v1/measure")
    async def measure(request: Request):
        body = await request.json()
        service.asked.append(("measure", body))
        return {**body, "objects": [measured(thing) for thing in body["objects"]]}

    @app.get("/api/v1/export")
    def formats():
        return FORMATS

    @app.post("/api/v1/export/{kind}")
    async def export(kind: str, request: Request):
        body = await request.json()
        service.asked.append((f"export {kind}", body))
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as pack:
            pack.writestr("objects.json", json.dumps(body))
        return Response(out.getvalue(), headers={"Content-Disposition": f'attachment; filename="objects-{kind}.zip"'})

    @app.get("/api/v1/runs")
    def runs():
        return RUNS

    @app.get("/api/v1/runs/demo/{stamp}/report")
    def report(stamp: str):
        return HTMLResponse(REPORT, headers={"Content-Security-Policy": "sandbox"})

    @app.get("/api/v1/jobs")
    def jobs():
        return {"jobs": []}

    return app


@contextlib.contextmanager
def served_page(service, port=0):
    """The page behind a real socket; ends with the block, and can then be begun again at the same port."""
    server = uvicorn.Server(uvicorn.Config(page_app(service), log_level="critical", timeout_graceful_shutdown=1))
    door = socket.create_server(("127.0.0.1", port))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [door]})
    thread.start()
    try:
        yield door.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(20)
