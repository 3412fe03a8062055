"""Examples of the interface's description, made for the models that are served: sent as they are, they are answered."""

from __future__ import annotations

import copy
import math
from typing import Any

from fastapi import FastAPI

from hotlap.base.errors import HotlapError
from hotlap.measure.servable import Signature
from hotlap.tools.serve import Service
from hotlap.web.tensors import NAMES

SIDE = 32
"""For a size that is free; networks that halve it five times take it."""
MOST = 4096
"""Numbers that an example may hold and still be read."""


def add_examples(app: FastAPI, service: Service) -> None:
    """Lets the application's description speak of the served models."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        said = copy.deepcopy(plain())
        for path, methods in said["paths"].items():
            for operation in methods.values():
                _name_model(operation, _fitting(service, path))
        loaded = _smallest(service)
        if loaded is not None:
            infer = said["paths"]["/v2/models/{model}/infer"]["post"]
            _name_model(infer, loaded[0])
            infer["requestBody"]["content"]["application/json"]["example"] = _tensors(loaded[1])
        return said

    app.openapi = described  # type: ignore[method-assign]


def _fitting(service: Service, path: str) -> str:
    """A model that the route can be tried with: the first whose answers are of its kind, or the first of all."""
    wanted = {"/api/v1/mesh": "mesh", "/api/v1/render": "picture"}.get(path, "objects")
    stand = service.status()["models"]
    return next((name for name, said in stand.items() if said["answers"] == wanted), service.models[0])


def _name_model(operation: dict[str, Any], model: str) -> None:
    fields = {one["name"]: one["schema"] for one in operation.get("parameters", [])}
    form = operation.get("requestBody", {}).get("content", {}).get("multipart/form-data", {})
    for said in (fields.get("model"), form.get("schema", {}).get("properties", {}).get("model")):
        if said is not None:
            said["example"] = model


def _smallest(service: Service) -> tuple[str, Signature] | None:
    """The loaded model whose inputs can be written down in the fewest numbers, where they can be at all."""
    found = []
    for name in service.models:
        try:
            signature = service.signature(name)
        except HotlapError:  # still being loaded
            continue
        found.append((sum(math.prod(_shape(spec.shape)) for spec in signature.inputs), name, signature))
    readable = sorted((each for each in found if each[0] <= MOST), key=lambda each: each[0])
    return readable[0][1:] if readable else None


def _shape(shape: tuple[int, ...]) -> list[int]:
    return [1, *(SIDE if size == -1 else size for size in shape)]


def _tensors(signature: Signature) -> dict[str, Any]:
    entries = []
    for spec in signature.inputs:
        shape = _shape(spec.shape)
        zeros = [0] * math.prod(shape)
        entries.append({"name": spec.name, "shape": shape, "datatype": NAMES[spec.dtype], "data": zeros})
    return {"inputs": entries}
