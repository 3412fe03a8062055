"""Objects after a person has changed them: measured anew, and exported in every format."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hotlap.base.errors import TooLarge
from hotlap.measure.served_workload import MAX_PIXELS
from hotlap.web.protocol import FAULTS

Coordinate = Annotated[float, Field(ge=-1e6, le=1e6)]
Corner = tuple[Coordinate, Coordinate]
Ring = Annotated[list[Corner], Field(min_length=3, max_length=100_000)]
Scale = Annotated[float, Field(gt=0, le=1e6)]
MOST_PICTURES = 10_000
_SQUARE: dict[str, Any] = {"id": 1, "polygon": [[2, 2], [12, 2], [12, 9], [2, 9]], "holes": [], "confidence": 0.9}
_PICTURE: dict[str, Any] = {"file": "a.png", "width": 64, "height": 48, "objects": [_SQUARE]}


class DrawnObject(BaseModel):
    """One object's outline in the picture's own pixels; the first corner is not repeated."""

    id: int = Field(ge=1, le=2**31 - 1)
    polygon: Ring
    holes: list[Ring] = Field(default=[], max_length=10_000)
    confidence: float | None = Field(default=None, ge=0, le=1)


class DrawnPicture(BaseModel):
    """The objects of one picture."""

    model_config = ConfigDict(json_schema_extra={"example": _PICTURE})
    file: str = Field(default="picture", max_length=1000)
    width: int = Field(ge=1, le=MAX_PIXELS)
    height: int = Field(ge=1, le=MAX_PIXELS)
    um_per_px: Scale | None = None
    model: str | None = None
    objects: list[DrawnObject] = Field(max_length=100_000)


class DrawnPictures(BaseModel):
    """The objects of several pictures."""

    pictures: list[DrawnPicture] = Field(min_length=1, max_length=MOST_PICTURES)


_REFERENCE = {"$ref": "#/components/schemas/DrawnPicture"}
_SEVERAL = {"type": "array", "items": _REFERENCE, "minItems": 1, "maxItems": MOST_PICTURES}
EXPORT = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"type": "object", "required": ["pictures"], "properties": {"pictures": _SEVERAL}},
                "example": {"pictures": [_PICTURE]},
            }
        },
    }
}


def editing_routes() -> APIRouter:
    """The routes; they need no model."""
    routes = APIRouter(prefix="/api/v1", tags=["editing"])
    faults: dict[int | str, dict[str, Any]] = {status: FAULTS[status] for status in (400, 404, 413, 422)}

    @routes.post("/measure", responses=faults)
    async def measure(picture: DrawnPicture) -> dict[str, Any]:
        """The same objects with their metrics, each measured by itself; {} for one that encloses no pixel."""
        return await asyncio.to_thread(_measured, picture)

    @routes.get("/export")
    async def formats() -> list[dict[str, str]]:
        """The formats that objects can be exported in."""
        from hotlap.segment.edited import FORMATS

        return [{"format": name, "label": label, "suffix": suffix} for name, (label, suffix) in FORMATS.items()]

    @routes.post("/export/{kind}", openapi_extra=EXPORT, responses=faults, response_class=Response)
    async def export(kind: str, request: Request) -> Response:
        """The objects as a file: one for all pictures, or one each, and then a zip of them."""
        # Megabytes of corners, which FastAPI itself would read here, in thrice the time, while no other is answered.
        made = await asyncio.to_thread(_exported, kind, await request.body())
        headers = {"Content-Disposition": f'attachment; filename="{made.name.encode("ascii", "replace").decode()}"'}
        return Response(made.content, media_type="application/octet-stream", headers=headers)

    return routes


def _exported(kind: str, body: bytes) -> Any:
    from hotlap.segment.edited import export_edited

    try:
        drawn = DrawnPictures.model_validate_json(body)
    except ValidationError as error:
        wrong = error.errors(include_input=False, include_url=False, include_context=False)
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in wrong]) from error
    return export_edited([_edited(picture) for picture in drawn.pictures], kind)


def _edited(picture: DrawnPicture) -> Any:
    from hotlap.segment.edited import EditedObject, EditedPicture, make_polygon

    if picture.width * picture.height > MAX_PIXELS:
        raise TooLarge(
            f"picture {picture.file!r} has {picture.width}x{picture.height} pixels",
            expected=f"at most {MAX_PIXELS} in all",
        )
    objects = tuple(
        EditedObject(
            id=one.id,
            part=make_polygon(one.polygon, one.holes),
            confidence=1.0 if one.confidence is None else one.confidence,
        )
        for one in picture.objects
    )
    return EditedPicture(
        file=picture.file, width=picture.width, height=picture.height, objects=objects, um_per_px=picture.um_per_px
    )


def _measured(picture: DrawnPicture) -> dict[str, Any]:
    from hotlap.segment.edited import measure_edited
    from hotlap.segment.served import metrics_as_json

    found = measure_edited(_edited(picture))
    objects = [
        {**one.model_dump(), "metrics": metrics_as_json(metrics) if metrics is not None else {}}
        for one, metrics in zip(picture.objects, found, strict=True)
    ]
    return {**picture.model_dump(), "objects": objects}
