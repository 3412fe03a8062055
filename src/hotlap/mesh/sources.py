"""The objects of a folder: mesh files anywhere below it, or rendered ShapeNet as 3D-R2N2 and Pixel2Mesh have it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hotlap.base.errors import DataError
from hotlap.data.mesh_file import SUFFIXES
from hotlap.data.plain_pickle import load_plain_pickle
from hotlap.data.white_picture import decode_white_picture
from hotlap.mesh.cameras import SIZE_PX, Cameras, checked_rows
from hotlap.mesh.viewed_object import ViewedObject

METADATA = "rendering_metadata.txt"
CATEGORIES = {
    "02691156": "plane", "02828884": "bench", "02933112": "cabinet", "02958343": "car", "03001627": "chair",
    "03211117": "monitor", "03636649": "lamp", "03691459": "speaker", "04090263": "firearm", "04256520": "couch",
    "04379243": "table", "04401088": "cellphone", "04530566": "watercraft",
}  # fmt: skip
"""The thirteen categories of ShapeNet that are reported on."""
LAYOUT = f"files {', '.join(SUFFIXES)}, or <category>/<model>/rendering/{METADATA} with <category>_<model>_00.dat"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where one object comes from."""

    name: str
    category: str = ""
    path: Path
    """The mesh file, or the folder of its renderings."""
    ground_truth: Path | None = None
    """The .dat file with its points, which may be missing; None for a mesh."""

    def signature(self) -> str:
        """Differs when the file has been changed."""
        file = self.ground_truth or self.path
        if not file.exists():
            return "missing"
        stat = file.stat()
        return f"{stat.st_size}-{stat.st_mtime_ns}"


def find_sources(folder: Path) -> list[Source]:
    """The objects below a folder, by name."""
    if not folder.is_dir():
        raise DataError(f"folder {str(folder)!r} does not exist", expected=LAYOUT)
    rendered = sorted(folder.rglob(METADATA))
    sources = _rendered(folder, rendered) if rendered else _meshes(folder)
    if not sources:
        raise DataError(f"folder {str(folder)!r} holds no objects", expected=LAYOUT)
    seen: dict[str, Source] = {}
    for source in sources:
        if source.name in seen:
            raise DataError(
                f"{str(source.path)!r} and {str(seen[source.name].path)!r} would both be named {source.name!r}",
                remedy="Rename one of them",
            )
        seen[source.name] = source
    return sorted(sources, key=lambda source: source.name)


def _meshes(folder: Path) -> list[Source]:
    """A file that is alone in its folder is named after the folder: many collections call every file model.obj."""
    files = [
        path
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in SUFFIXES and not any(p.startswith(".") for p in path.relative_to(folder).parts)
    ]
    counts = Counter(path.parent for path in files)
    sources = []
    for path in files:
        parts = path.relative_to(folder).with_suffix("").parts
        parts = parts[:-1] if counts[path.parent] == 1 and len(parts) > 1 else parts
        category = parts[0] if len(parts) > 1 else ""
        name = "-".join(parts).replace("~", "-")  # which marks variants
        sources.append(Source(name=name, category=category, path=path))
    return sources


def _rendered(folder: Path, metadata: list[Path]) -> list[Source]:
    """Objects with renderings. One without ground truth is refused when it is read: others may have theirs."""
    truths = {path.stem: path for path in folder.rglob("*.dat")}
    if not truths:
        raise DataError(
            f"{str(folder)!r} has renderings but no ground truth", expected="<category>_<model>_00.dat files"
        )
    sources = []
    for file in metadata:
        model = file.parent.parent
        category = model.parent.name
        name = f"{category}_{model.name}"
        truth = truths.get(f"{name}_00", folder / f"{name}_00.dat")
        known = CATEGORIES.get(category, category)
        sources.append(Source(name=name, category=known, path=file.parent, ground_truth=truth))
    return sources


def read_rendered(source: Source) -> ViewedObject:
    """The object of a rendered ShapeNet folder; its points, which are in the frame of view 0, in the world."""
    assert source.ground_truth is not None
    if not source.ground_truth.is_file():
        raise DataError(
            f"{str(source.path)!r} has no ground truth",
            expected=f"{source.ground_truth.name} somewhere below {str(source.ground_truth.parent)!r}",
        )
    cameras = read_camera_rows(source.path / METADATA)
    pictures = sorted(source.path.glob("*.png"))[: len(cameras)]
    if len(pictures) < len(cameras):
        raise DataError(
            f"{str(source.path)!r} has {len(pictures)} pictures", expected=f"{len(cameras)}, as {METADATA} has rows"
        )
    contents = tuple(path.read_bytes() for path in pictures)
    for path, content in zip(pictures, contents, strict=True):
        decode_white_picture(content, SIZE_PX, str(path))  # damaged ones would end a training later
    values = torch.from_numpy(read_ground_truth(source.ground_truth))
    first = Cameras.from_rows(cameras[0])
    return ViewedObject(
        name=source.name,
        category=source.category,
        pictures=contents,
        cameras=cameras,
        points=first.to_world(values[:, :3]),
        normals=values[:, 3:] @ first.camera_from_world,
    )


def read_camera_rows(path: Path) -> Tensor:  # [V, 5]
    """The cameras in a text file, one row of numbers a view, apart by blanks or commas; # begins a comment."""
    if not path.is_file():
        raise DataError(
            f"cameras = {str(path)!r} {'is no file' if path.exists() else 'does not exist'}",
            expected="a text file with a row a view: azimuth, elevation, distance",
        )
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        words = line.partition("#")[0].replace(",", " ").split()
        try:
            rows += [[float(word) for word in words]] if words else []
        except ValueError as error:
            raise DataError(f"line {number} of {str(path)!r} is {line.strip()[:60]!r}", expected="numbers") from error
    return checked_rows(rows, str(path))


def read_ground_truth(path: Path) -> np.ndarray:  # [N, 6] float32
    """Points and normals in the frame of the first view, from a .dat file: an array, or a pair whose second it is."""
    data = load_plain_pickle(path.read_bytes(), str(path))
    if isinstance(data, (tuple, list)) and len(data) > 1:
        data = data[1]
    values = np.asarray(data, np.float32) if isinstance(data, np.ndarray) else np.empty((0, 0), np.float32)
    if values.ndim != 2 or values.shape[1] != 6:
        raise DataError(f"ground truth {str(path)!r} has shape {values.shape}", expected="N rows of point and normal")
    if len(values) == 0:
        raise DataError(f"ground truth {str(path)!r} has 0 points", remedy="Make it again from the mesh")
    if not np.isfinite(values).all():
        raise DataError(f"ground truth {str(path)!r} holds NaN or infinity", remedy="Make it again from the mesh")
    return values
