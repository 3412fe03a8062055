"""The mesh of one object from its pictures: files in three formats and a turntable."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hotlap.base import events
from hotlap.base.errors import ConfigError, DataError, StorageError
from hotlap.base.events import Emit, ignore
from hotlap.base.format import format_count
from hotlap.data.mesh_file import Mesh, write_mesh
from hotlap.data.picture_file import SUFFIXES
from hotlap.data.white_picture import encode_gif, encode_png, read_white_picture
from hotlap.engine.parts import pick_device
from hotlap.mesh.cameras import SIZE_PX, Cameras, checked_rows
from hotlap.mesh.config import MAX_VIEWS, MeshPredictConfig
from hotlap.mesh.network import load_network, predict_vertices
from hotlap.mesh.preview import as_mesh, strip, turntable
from hotlap.mesh.sources import read_camera_rows
from hotlap.records.run import write_atomic

LITE = "pixel2mesh-lite"
LEVEL = (0.0, 0.0, 0.8)
"""Where the one picture of pixel2mesh-lite is taken from if nobody says: its meshes lie 0.8 before the camera."""


@dataclass(frozen=True, kw_only=True)
class PredictedMesh:
    """What was written."""

    num_vertices: int
    num_faces: int
    files: tuple[str, ...]

    def lines(self) -> list[str]:
        return [f"{self.num_vertices} vertices, {self.num_faces} faces", *self.files]


def predict_mesh(config: MeshPredictConfig, emit: Emit = ignore) -> PredictedMesh:
    """Predicts a mesh and writes it in every format asked for, with a turntable as PNG and GIF."""
    if config.weights is None:
        raise ConfigError("no weights were given", remedy="Give --weights CHECKPOINT, from 'hotlap mesh train'")
    paths = find_pictures(config.images)
    if config.network == LITE and len(paths) > 1:
        raise ConfigError(
            f"images = {len(paths)} files for network = {LITE!r}", expected="one: it sees a single picture"
        )
    rows = _camera_rows(config, len(paths), emit)
    images = torch.stack([read_white_picture(path, SIZE_PX) for path in paths])
    device = pick_device(config.device)
    workload, model = load_network(config.network, config.stage, config.workload, config.weights)
    model = model.to(device)
    emit(events.note(f"{format_count(len(paths), 'view')}: {', '.join(path.name for path in paths)}"))
    vertices = predict_vertices(workload, model, images[None].to(device), rows[None].to(device))[0].cpu()
    in_world = Cameras.from_rows(rows[0]).to_world(vertices)
    faces = workload.faces(model).cpu()
    try:
        config.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot create {str(config.out)!r}: {error.strerror or error}") from error
    mesh = as_mesh(in_world if config.frame == "world" else vertices, faces)
    files = [file for name in config.formats for file in write_mesh(config.out / f"mesh.{name}", mesh)]
    if config.turntable:
        files += _write_turntable(config, as_mesh(in_world, faces))
    return PredictedMesh(
        num_vertices=len(mesh.vertices), num_faces=len(mesh.faces), files=tuple(str(file) for file in files)
    )


def _write_turntable(config: MeshPredictConfig, mesh: Mesh) -> list[Path]:
    pictures = turntable(mesh, config.turntable)
    sheet, film = config.out / "turntable.png", config.out / "turntable.gif"
    write_atomic(sheet, encode_png(strip(pictures, min(8, len(pictures)))))
    write_atomic(film, encode_gif(pictures))
    return [sheet, film]


def find_pictures(given: tuple[Path, ...]) -> list[Path]:
    """The picture files that were named, or those of the one folder that was, by name."""
    paths = list(given)
    if len(paths) == 1 and paths[0].is_dir():
        paths = sorted(path for path in paths[0].iterdir() if path.suffix.lower() in SUFFIXES)
        if not paths:
            raise DataError(f"folder {str(given[0])!r} holds no pictures", expected=f"files {', '.join(SUFFIXES)}")
    if not paths:
        raise ConfigError("no images were given", expected=f"1 to {MAX_VIEWS} pictures of one object, or a folder")
    if len(paths) > MAX_VIEWS:
        raise ConfigError(f"images = {len(paths)} files", expected=f"1 to {MAX_VIEWS} pictures of one object")
    return paths


def _camera_rows(config: MeshPredictConfig, num_views: int, emit: Emit) -> Tensor:  # [V, 5]
    if config.cameras is None and config.network == LITE:
        emit(events.note(f"no cameras were given: the picture is taken to be level, from {LEVEL[2]:g} away"))
        return checked_rows([LEVEL])
    if config.cameras is None:
        rows_asked = format_count(num_views, "row")
        raise ConfigError(
            "no cameras were given",
            expected=f"--cameras FILE with {rows_asked} of azimuth, elevation (degrees) and distance",
            remedy="An object 0.57 long from corner to corner is seen whole from 0.8 away",
        )
    rows = read_camera_rows(config.cameras)
    if len(rows) != num_views:
        raise DataError(
            f"cameras = {str(config.cameras)!r} has {format_count(len(rows), 'row')}",
            expected=f"{num_views}, one for each picture",
        )
    return rows
