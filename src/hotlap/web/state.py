"""What is served, how it stands, and the numbers that a monitor collects."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse

from hotlap.device.nvml import Nvml
from hotlap.tools.serve import Service
from hotlap.tools.serve.counters import Labels


def state_routes(service: Service) -> APIRouter:
    """The routes of one service."""
    routes = APIRouter(tags=["state"])

    @routes.get("/api/v1/models")
    async def models() -> dict[str, Any]:
        """Every model that is served, and how."""
        stand = service.status()["models"]
        return {"models": [{"name": name, **said} for name, said in stand.items()]}

    @routes.get("/api/v1/status")
    async def status() -> dict[str, Any]:
        """Devices, queues and counts."""
        cards = await asyncio.to_thread(_cards)
        gpus = [{"name": name, "memory_used_bytes": used, "memory_bytes": total} for name, _, used, total in cards]
        return {**service.status(), "gpus": gpus}

    @routes.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        """Counters, histograms and gauges in Prometheus' text format."""
        cards = await asyncio.to_thread(_cards)
        memory: list[tuple[str, str, Labels, float]] = [
            ("gpu_memory_used_bytes", "Memory in use on a card, by anyone", (("gpu", uuid),), float(used))
            for _, uuid, used, _ in cards
        ]
        text = service.counters.text([*service.gauges(), *memory])
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    @routes.get("/healthz", include_in_schema=False)
    async def healthz() -> JSONResponse:
        return JSONResponse({"ready": service.is_ready}, 200 if service.is_ready else 503)

    return routes


def _cards() -> list[tuple[str, str, int, int]]:
    """Name, identity, memory in use and memory of each card that the driver tells about."""
    found = []
    with Nvml() as nvml:
        for card in nvml.cards():
            state = nvml.state(nvml.handle(card.uuid))
            if state is not None and state.memory_used_bytes is not None:
                found.append((card.name, card.uuid, int(state.memory_used_bytes), card.memory_bytes))
    return found
