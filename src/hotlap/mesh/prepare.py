"""A folder of objects made ready to learn from: rendered views, cameras and surface points, a small file for each.

What is there already is kept, so a run that was stopped goes on where it was, and a folder that has grown is completed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotlap.base import events
from hotlap.base.errors import ConfigError, DataError, StorageError
from hotlap.base.events import Emit, ignore
from hotlap.base.format import format_count
from hotlap.data.mesh_file import Mesh, find_faults, normalised, read_mesh
from hotlap.data.picture_file import require_pillow
from hotlap.data.white_picture import encode_jpeg, encode_png
from hotlap.device.host_random import derived_seed
from hotlap.engine.parts import pick_device
from hotlap.mesh.cameras import Cameras, make_rows
from hotlap.mesh.config import ViewsConfig
from hotlap.mesh.render import render_views
from hotlap.mesh.sources import Source, find_sources, read_rendered
from hotlap.mesh.surface import sample_surface
from hotlap.mesh.viewed_object import SUFFIX, ViewedObject, read_about, read_object, write_object
from hotlap.records.run import write_atomic

INDEX = "index.json"
SHEET = "sheet.png"
VERSION = 1
"""Raised when the same settings would give other files."""
DIAGONAL = 0.57
"""Length of an object's bounding box from corner to corner: as large as the objects that Pixel2Mesh learnt from, which
fill a view from 0.8 away without touching its border."""
STRETCH = 0.4
"""Axes of variants are stretched by exp(-STRETCH) to exp(STRETCH), 0.67 to 1.49, each by itself."""
SHEET_VIEWS = 8
"""Views of an object in its row of the sheet."""


@dataclass(frozen=True, kw_only=True)
class PreparedFolder:
    """What came of preparing a folder."""

    folder: Path
    names: tuple[str, ...]
    """Objects that are ready, in order."""
    num_made: int
    """How many of them are new."""
    failed: dict[str, str]
    """Objects left out, and why."""

    def lines(self) -> list[str]:
        size = sum(file.stat().st_size for file in self.folder.glob(f"*{SUFFIX}"))
        ready = f"{format_count(len(self.names), 'object')} ready in {self.folder}, {size / 1e6:.1f} MB"
        return [
            f"{ready} ({self.num_made} made now)",
            *(f"left out: {name}: {why}" for name, why in self.failed.items()),
        ]


def prepare_views(config: ViewsConfig, emit: Emit = ignore) -> PreparedFolder:
    """Renders and samples every object of a folder into another; objects that cannot be used are named, not fatal."""
    require_pillow()
    device = str(pick_device(config.device))
    config = dataclasses.replace(config, device=device)
    sources = find_sources(config.folder)
    if config.variants and sources[0].ground_truth is not None:
        raise ConfigError(f"variants = {config.variants} of rendered pictures", expected="mesh files, or 0")
    _make_folder(config.out)
    todo = [source for source in sources if not _is_ready(source, config)]
    emit(events.start("views", len(todo)))
    try:
        failed = _make_all(todo, config, emit)
    finally:
        emit(events.finish("views"))
    names = [source.name for source in sources if source.name not in failed]
    if not names:
        name, why = min(failed.items())
        raise DataError(f"none of the {len(sources)} objects of {str(config.folder)!r} can be used. {name}: {why}")
    index = {"version": VERSION, "recipe": _recipe(config), "objects": names, "failed": failed}
    index["variants"] = config.variants
    write_atomic(config.out / INDEX, json.dumps(index, indent=1) + "\n")
    if config.sheet:
        shown = [read_object(object_file(config.out, name)) for name in names[: config.sheet]]
        write_atomic(config.out / SHEET, encode_png(contact_sheet(shown)))
    return PreparedFolder(
        folder=config.out, names=tuple(names), num_made=len(todo) - len(failed), failed=dict(sorted(failed.items()))
    )


def _make_all(todo: list[Source], config: ViewsConfig, emit: Emit) -> dict[str, str]:
    """Makes the files of all sources; those that cannot be used, with the reason."""
    failed: dict[str, str] = {}
    before = torch.get_num_threads()
    # One thread of torch's own in each: an object's many small steps gain nothing from several.
    pool = ThreadPoolExecutor(config.workers or before, initializer=lambda: torch.set_num_threads(1))
    work = {pool.submit(_make_one, source, config): source for source in todo}
    try:
        for done, future in enumerate(as_completed(work), 1):
            source = work[future]
            try:
                for fault in future.result():
                    emit(events.note(f"{source.name}: {fault}"))
            except DataError as error:
                failed[source.name] = str(error)
                emit(events.warn(f"{source.name} is left out: {error}"))
            emit(events.advance("views", done, len(todo), source.name))
    finally:
        pool.shutdown(cancel_futures=True)  # or Ctrl-C would wait for all that are still to come
        torch.set_num_threads(before)
    return failed


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot create {str(folder)!r}: {error.strerror or error}", remedy="Choose another folder with --out"
        ) from error


def _recipe(config: ViewsConfig) -> dict[str, Any]:
    """The settings that decide what a file holds."""
    left_out = ("folder", "out", "workers", "device", "sheet")
    return {key: value for key, value in dataclasses.asdict(config).items() if key not in left_out}


def object_file(folder: Path, name: str, variant: int = 0) -> Path:
    """Where a prepared object or its n-th variant lies; long names are cut and told apart by a digest."""
    if len(name) > 100:
        name = f"{name[:80]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return folder / (f"{name}~{variant}{SUFFIX}" if variant else f"{name}{SUFFIX}")


def _stamp(source: Source, config: ViewsConfig) -> dict[str, Any]:
    return {"version": VERSION, "recipe": _recipe(config), "source": source.signature()}


def _is_ready(source: Source, config: ViewsConfig) -> bool:
    """Whether all files of an object are there, as these settings would make them."""
    stamp = _stamp(source, config)
    for variant in range(config.variants + 1):
        file = object_file(config.out, source.name, variant)
        if not file.is_file():
            return False
        try:
            about = read_about(file)
        except DataError:
            return False  # it will be written anew
        if any(about.get(key) != value for key, value in stamp.items()):
            return False
    return True


def _make_one(source: Source, config: ViewsConfig) -> list[str]:
    """Writes the files of one object; what is odd about it."""
    faults: list[str] = []
    for variant in range(config.variants + 1):
        if source.ground_truth is not None:
            made = read_rendered(source)
        else:
            made = view_mesh(source, config, variant=variant)
        faults = faults or made.about.get("faults", [])
        made = dataclasses.replace(made, about={**made.about, **_stamp(source, config)})
        write_object(object_file(config.out, source.name, variant), made)
    return faults


def view_mesh(source: Source, config: ViewsConfig, *, variant: int = 0) -> ViewedObject:
    """A mesh file, or its n-th variant, as networks learn it: normalised, seen from around, its surface sampled."""
    mesh = upright(read_mesh(source.path), config.up)
    chance = torch.Generator().manual_seed(derived_seed("views", config.seed, source.name, variant))
    if variant:
        factors = torch.exp(STRETCH * (2 * torch.rand(3, generator=chance, dtype=torch.float64) - 1))
        mesh = dataclasses.replace(mesh, vertices=mesh.vertices * factors.numpy())
    mesh = normalised(mesh, DIAGONAL)
    rows = draw_cameras(config, chance)
    views = render_views(
        mesh, Cameras.from_rows(rows), supersample=config.supersample, device=torch.device(config.device)
    )
    points, normals = sample_surface(mesh, config.points, chance)
    encode = _encoder(config)
    return ViewedObject(
        name=f"{source.name}~{variant}" if variant else source.name,
        category=source.category,
        pictures=tuple(encode(image) for image in views.image),
        cameras=rows,
        points=points,
        normals=normals,
        about={"file": source.path.name, "num_faces": len(mesh.faces), "faults": find_faults(mesh).in_words()},
    )


def _encoder(config: ViewsConfig) -> Callable[[Tensor], bytes]:
    return encode_png if config.format == "png" else encode_jpeg


def upright(mesh: Mesh, up: str) -> Mesh:
    """The mesh turned so that y is up."""
    if up == "y":
        return mesh
    x, y, z = mesh.vertices.T
    return dataclasses.replace(mesh, vertices=np.stack([x, z, -y], axis=1))


def draw_cameras(config: ViewsConfig, chance: torch.Generator) -> Tensor:  # [views, 5]
    """Cameras all around, one in each equal part of the circle, at heights and distances drawn between the bounds."""
    u = torch.rand(3, config.views, generator=chance)
    azimuth = (torch.arange(config.views) + u[0]) * (360.0 / config.views)
    elevation = config.min_elevation + u[1] * (config.max_elevation - config.min_elevation)
    distance = config.min_distance + u[2] * (config.max_distance - config.min_distance)
    return make_rows(azimuth, elevation, distance)


def contact_sheet(objects: list[ViewedObject]) -> Tensor:  # [rows * 224, columns * 224, 3] uint8
    """Some views of each object in a row, each of them once where all have as many."""
    columns, rows = min(SHEET_VIEWS, max(len(thing.pictures) for thing in objects)), []
    for thing in objects:
        chosen = torch.linspace(0, len(thing.pictures) - 1, columns).round().long().tolist()
        rows.append(torch.cat([thing.picture(number) for number in chosen], 2))
    return torch.cat(rows, 1).permute(1, 2, 0).contiguous()
