"""Routes of the Open Inference Protocol v2."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

import hotlap
from hotlap.measure.servable import TensorSpec
from hotlap.tools.serve import Service
from hotlap.web.leaving import while_connected
from hotlap.web.tensors import NAMES, encode_infer, parse_infer

HEADER_LENGTH = "Inference-Header-Content-Length"
TENSOR: dict[str, Any] = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "datatype": {"type": "string", "enum": sorted(NAMES.values())},
        "data": {"type": "array", "items": {}},
        "parameters": {"type": "object"},
    },
}
WANTED: dict[str, Any] = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"type": "string"}, "parameters": {"type": "object"}},
}
INFER_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["inputs"],
                "properties": {
                    "id": {"type": "string"},
                    "inputs": {"type": "array", "items": TENSOR},
                    "outputs": {"type": "array", "items": WANTED},
                    "parameters": {"type": "object", "properties": {"deadline_s": {"type": "number"}}},
                },
            },
            "example": {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [0.5, 0.25]}]},
        }
    },
}
FAULTS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The request itself is wrong"},
    401: {"description": "No token, or a wrong one"},
    403: {"description": "This host or origin may not call"},
    404: {"description": "No such model, input or output"},
    408: {"description": "The body did not come"},
    413: {"description": "More than is allowed at once, or than fits into memory"},
    422: {"description": "The content cannot be read"},
    429: {"description": "The queue is full; Retry-After says when to come back"},
    503: {"description": "Loading, restarting or shutting down; Retry-After says when to come back"},
    504: {"description": "The deadline passed"},
}
FULL: dict[str, Any] = {"description": "The disk has no room for jobs"}
"""What every route that runs a model may answer."""


def protocol_routes(service: Service) -> APIRouter:
    """The routes of one service."""
    routes = APIRouter(prefix="/v2", tags=["Open Inference Protocol v2"])

    @routes.get("")
    async def server() -> dict[str, Any]:
        """What this server is."""
        return {"name": "hotlap", "version": hotlap.__version__, "extensions": ["binary_tensor_data"]}

    @routes.get("/health/live")
    async def live() -> dict[str, bool]:
        """Whether the process answers."""
        return {"live": True}

    @routes.get("/health/ready", responses={503: FAULTS[503]})
    async def ready() -> JSONResponse:
        """Whether every model is loaded, warmed up and taking requests."""
        return _readiness(service.is_ready)

    @routes.get("/models/{model}/versions/1", include_in_schema=False)
    @routes.get("/models/{model}", responses={404: FAULTS[404], 503: FAULTS[503]})
    async def metadata(model: str) -> dict[str, Any]:
        """What a model takes and gives; -1 counts the rows."""
        signature = service.signature(model)
        return {
            "name": model,
            "versions": ["1"],
            "platform": "pytorch",
            "inputs": [_described(spec) for spec in signature.inputs],
            "outputs": [_described(spec) for spec in signature.outputs],
        }

    @routes.get("/models/{model}/versions/1/ready", include_in_schema=False)
    @routes.get("/models/{model}/ready", responses={404: FAULTS[404], 503: FAULTS[503]})
    async def model_ready(model: str) -> JSONResponse:
        """Whether one model takes requests."""
        service.servable(model)
        return _readiness(service.is_ready)

    @routes.post("/models/{model}/versions/1/infer", include_in_schema=False)
    @routes.post("/models/{model}/infer", openapi_extra={"requestBody": INFER_BODY}, responses=FAULTS)
    async def infer(model: str, request: Request) -> Response:
        """Tensors through a model; the first dimension counts rows, which share batches with other requests'."""
        signature = service.signature(model)
        body = await request.body()
        parsed = await asyncio.to_thread(parse_infer, body, request.headers.get(HEADER_LENGTH), signature)
        outputs = await while_connected(request, service.infer(model, parsed.rows, parsed.deadline_s))
        content, length = await asyncio.to_thread(encode_infer, model, parsed, outputs, signature)
        if length is None:
            return Response(content, media_type="application/json")
        return Response(content, media_type="application/octet-stream", headers={HEADER_LENGTH: str(length)})

    return routes


def _readiness(ready: bool) -> JSONResponse:
    return JSONResponse({"ready": ready}, 200 if ready else 503, headers=None if ready else {"Retry-After": "5"})


def _described(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": NAMES[spec.dtype], "shape": [-1, *spec.shape]}
