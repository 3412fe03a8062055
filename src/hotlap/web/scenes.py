"""Meshes of pictures, and pictures of a scene: answers that are files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from hotlap.base.errors import DataError, UsageError
from hotlap.measure.servable import MESH, PICTURE, FileAnswer
from hotlap.tools.serve import Service
from hotlap.web.leaving import while_connected
from hotlap.web.pictures import read_fields, read_files, read_form, read_number
from hotlap.web.protocol import FAULTS

MOST_VIEWS = 8
_MODEL = {"type": "string", "description": "A served model; may be left out where one only answers so."}
_DEADLINE = {"type": "number", "description": "Seconds after which the answer is not wanted any more."}
_CAMERA = {
    "width": 640, "height": 480, "fx": 640.0, "fy": 640.0,
    "camera_from_world": [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 4], [0, 0, 0, 1]],
}  # fmt: skip
_NUMBERS = {"type": "array", "items": {"type": "number"}}
_ROWS = {"type": "array", "items": _NUMBERS}
_CAMERA_FIELDS = {
    "width": {"type": "integer", "minimum": 1}, "height": {"type": "integer", "minimum": 1},
    "fx": {"type": "number"}, "fy": {"type": "number"}, "cx": {"type": "number"}, "cy": {"type": "number"},
    "camera_from_world": {**_ROWS, "description": "Four rows; x to the right, y down, z forward."},
    "position": {**_NUMBERS, "description": "With rotation, in the place of camera_from_world."},
    "rotation": {**_ROWS, "description": "Three rows, world from camera."},
}  # fmt: skip
RENDER: dict[str, Any] = {
    "parameters": [
        {"name": "model", "in": "query", "required": False, "schema": _MODEL},
        {"name": "deadline_s", "in": "query", "required": False, "schema": _DEADLINE},
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["width", "height", "fx", "fy"],
                    "properties": _CAMERA_FIELDS,
                },
                "example": _CAMERA,
            }
        },
    },
}
MESH_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["files"],
                    "properties": {
                        "files": {"type": "array", "items": {"type": "string", "format": "binary"}},
                        "cameras": {
                            "type": "string",
                            "description": "JSON: for each picture azimuth and elevation in degrees, and distance.",
                            "example": "[[0, 25, 0.8], [60, 25, 0.8], [120, 25, 0.8]]",
                        },
                        "format": {"type": "string", "enum": ["obj", "glb", "ply"], "default": "obj"},
                        "model": _MODEL,
                        "deadline_s": _DEADLINE,
                    },
                }
            }
        },
    }
}


def scene_routes(service: Service) -> APIRouter:
    """The routes of one service."""
    routes = APIRouter(prefix="/api/v1", tags=["meshes and scenes"])

    @routes.post("/mesh", openapi_extra=MESH_FORM, responses=FAULTS, response_class=Response)
    async def mesh(request: Request) -> Response:
        """The mesh of an object from its pictures: a form with 'files', and for models of several views 'cameras'."""
        if not request.headers.get("content-type", "").startswith("multipart/form-data"):
            raise DataError("the body is no form", expected="multipart/form-data with a field 'files'")
        async with read_form(request, MOST_VIEWS) as form:
            fields = read_fields(form)
            files = await read_files(form, "files")
        options = {"pictures": files, "cameras": _cameras(fields), "format": fields.get("format") or "obj"}
        model = _model(service, fields, MESH)
        return await _file(request, service, model, b"", options, read_number(fields, "deadline_s", None))

    @routes.post("/render", openapi_extra=RENDER, responses=FAULTS, response_class=Response)
    async def render(request: Request) -> Response:
        """The picture, as PNG, that a camera sees of a served scene."""
        model = _model(service, request.query_params, PICTURE)
        deadline_s = read_number(request.query_params, "deadline_s", None)
        return await _file(request, service, model, await request.body(), {}, deadline_s)

    return routes


async def _file(
    request: Request, service: Service, model: str, body: bytes, options: dict[str, Any], deadline_s: float | None
) -> Response:
    made: FileAnswer = await while_connected(request, service.answer_file(model, body, options, deadline_s))
    headers = {"Content-Disposition": f'inline; filename="{made.name}"'}
    return Response(made.content, media_type=made.media_type, headers=headers)


def _model(service: Service, given: Mapping[str, str], answers: str) -> str:
    """The model that is named, or the only one that answers so; one that answers otherwise is refused."""
    stand = {name: said["answers"] for name, said in service.status()["models"].items()}
    known = [name for name, said in stand.items() if said == answers]
    named = given.get("model") or (known[0] if len(known) == 1 else "")
    if not named:
        for name, said in stand.items():
            if said is None:  # what a model answers with is known once it is loaded
                service.signature(name)
        raise UsageError(
            "model is not named", expected=f"one of {', '.join(known)}" if known else f"one with a {answers}"
        )
    service.signature(named)
    if named not in known:
        raise UsageError(f"model {named!r} answers with no {answers}", expected=f"one of {', '.join(known) or 'none'}")
    return named


def _cameras(fields: Mapping[str, str]) -> Any:
    if not fields.get("cameras"):
        return None
    try:
        return json.loads(fields["cameras"])
    except (ValueError, RecursionError) as error:
        raise DataError(f"cameras is not JSON: {error}") from error
