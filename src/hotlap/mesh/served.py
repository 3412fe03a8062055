"""Mesh networks behind a service: pictures of an object and their cameras come in, vertices or a mesh's file go out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hotlap.base.errors import ConfigError, DataError
from hotlap.data.mesh_file import mesh_bytes
from hotlap.data.white_picture import decode_white_picture
from hotlap.measure.loaded_workload import LoadedWorkload, arm_on
from hotlap.measure.servable import MESH, Decoded, FileAnswer, ModelSpec, Rows, Signature, TensorSpec
from hotlap.measure.served_workload import MAX_PIXELS
from hotlap.measure.weights import with_weights
from hotlap.mesh.cameras import SIZE_PX, Cameras, checked_rows
from hotlap.mesh.config import MAX_VIEWS
from hotlap.mesh.preview import as_mesh
from hotlap.mesh.template import ellipsoid, icosphere
from hotlap.targets import load_target
from hotlap.workload import Batch, Workload

FORMATS = {"obj": "model/obj", "glb": "model/gltf-binary", "ply": "application/octet-stream"}
"""Files of a mesh, with their media types."""
LITE = "pixel2mesh-lite"


class MeshRows(Workload):
    """A mesh network without what only its training needs."""

    def __init__(self, workload: Workload, *, sees_one: bool) -> None:
        self.name, self.default_batch = workload.name, workload.default_batch
        self._workload, self._sees_one = workload, sees_one

    def build_model(self) -> nn.Module:
        return self._workload.build_model()

    def make_batch(self, n: int, device: torch.device, generator: torch.Generator) -> Batch:
        batch = self._workload.make_batch(n, device, generator)
        if self._sees_one:
            return {"image": batch["image"][:, 0].contiguous()}
        return {name: batch[name] for name in ("image", "cameras")}

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        found: Tensor = model(batch["image"]) if self._sees_one else self._workload.predict(model, batch)
        return found


class MeshServable:
    """Pixel2Mesh++, which takes 1 to 8 views with their cameras, or its small relative, which takes one picture."""

    threshold = 0.5
    is_heavy = False

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._is_lite = spec.target == LITE
        self._size = int(spec.options.get("size", SIZE_PX))

    def warm_up(self) -> None:
        self._faces()

    def answers(self, signature: Signature) -> str:
        return MESH

    def load(self, device: str) -> LoadedWorkload:
        spec = self._spec
        workload = load_target(spec.target, spec.options)
        if spec.weights:
            workload = with_weights(workload, Path(spec.weights))
        rows = MeshRows(workload, sees_one=self._is_lite)
        loaded = LoadedWorkload(rows, arm_on(spec.arm, device), spec.rows or rows.default_batch)
        if not self._is_lite:
            inputs = tuple(_of_any_views(taken) for taken in loaded.signature.inputs)
            loaded.signature = dataclasses.replace(loaded.signature, inputs=inputs)
        return loaded

    def decode(self, body: bytes, options: Mapping[str, Any], signature: Signature) -> Decoded:
        kind = options.get("format")
        if kind is not None and kind not in FORMATS:
            raise ConfigError(f"format = {kind!r}", expected=f"one of {', '.join(FORMATS)}")
        name = str(options.get("filename") or "upload")
        pictures: Sequence[tuple[str, bytes]] = options.get("pictures") or [(name, body)]
        most = 1 if self._is_lite else MAX_VIEWS
        if len(pictures) > most:
            raise DataError(f"{len(pictures)} pictures for model {self._spec.name!r}", expected=f"at most {most}")
        views = [decode_white_picture(content, self._size, file, MAX_PIXELS) for file, content in pictures]
        if self._is_lite:
            return Decoded((views[0][None],), {})
        rows = _camera_rows(options.get("cameras"), len(views))
        return Decoded((torch.stack(views)[None], rows[None]), {"camera": rows[0].tolist()})

    def finish(self, out: Rows, facts: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any] | FileAnswer:
        vertices = out[0][0].float()
        if "camera" in facts:
            vertices = Cameras.from_rows(torch.tensor(facts["camera"])).to_world(vertices)
        faces, kind = self._faces(), options.get("format")
        if kind is not None:
            content = mesh_bytes(as_mesh(vertices, faces), f".{kind}")
            return FileAnswer(name=f"mesh.{kind}", content=content, media_type=FORMATS[kind])
        file = str(options.get("filename") or "upload")
        return {"model": self._spec.name, "file": file, "vertices": vertices.tolist(), "faces": faces.tolist()}

    def _faces(self) -> Tensor:  # [F, 3]
        options = self._spec.options
        if self._is_lite:
            return icosphere(int(options.get("subdivisions", 4))).faces
        return ellipsoid().levels[int(options.get("levels", 3)) - 1].faces


def _of_any_views(spec: TensorSpec) -> TensorSpec:
    return dataclasses.replace(spec, shape=(-1, *spec.shape[1:]))


def _camera_rows(given: Any, num_views: int) -> Tensor:  # [V, 5]
    """The cameras that a client names, one for each picture."""
    if given is None:
        raise DataError(
            "cameras are missing",
            expected=f"{num_views} rows of azimuth, elevation (degrees) and distance, one for each picture",
        )
    plain = isinstance(given, Sequence) and all(
        isinstance(row, Sequence) and not isinstance(row, str) and all(type(v) in (int, float) for v in row)
        for row in given
    )
    if not plain:
        raise DataError(f"cameras = {str(given)[:60]!r}", expected="a list of rows of numbers")
    rows = checked_rows(given)
    if len(rows) != num_views:
        raise DataError(f"cameras has {len(rows)} rows", expected=f"{num_views}, one for each picture")
    return rows
