"""One object as networks learn it: pictures with their cameras, and points of its surface; one file each."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotlap.base.errors import DataError
from hotlap.data.npz import UnreadableArrays, read_npz
from hotlap.data.white_picture import decode_white_picture
from hotlap.mesh.cameras import SIZE_PX
from hotlap.records.run import write_atomic

SUFFIX = ".npz"
ARRAYS = {"pictures": 1, "ends": 1, "cameras": 2, "points": 2, "normals": 2, "about": 1}
"""What a file holds, and how many dimensions each has."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ViewedObject:
    """Pictures of an object and points on it, in a world whose origin is the object's middle and whose y is up."""

    name: str
    category: str = ""
    pictures: tuple[bytes, ...]
    """JPEG or PNG files' contents, over white."""
    cameras: Tensor
    """[V, 5] float32 rows: azimuth, elevation, rotation, distance, field of view."""
    points: Tensor
    """[N, 3] float32 in the world."""
    normals: Tensor
    """[N, 3] float32 of unit length."""
    about: dict[str, Any] = field(default_factory=dict)
    """Where it came from and how it was made."""

    def picture(self, number: int) -> Tensor:  # [3, 224, 224] uint8
        """One of the pictures, decoded."""
        return decode_white_picture(self.pictures[number], SIZE_PX, f"{self.name}, view {number}")


def write_object(path: Path, thing: ViewedObject) -> None:
    """``path`` holds the object whole, or what it held before."""
    out = io.BytesIO()
    np.savez(
        out,
        pictures=np.frombuffer(b"".join(thing.pictures), np.uint8),
        ends=np.cumsum([len(content) for content in thing.pictures]),
        cameras=thing.cameras.numpy(),
        points=thing.points.numpy(),
        normals=thing.normals.numpy().astype(np.float16),
        about=np.frombuffer(
            json.dumps({"name": thing.name, "category": thing.category, **thing.about}).encode(), np.uint8
        ),
    )
    write_atomic(path, out.getvalue())


def read_object(path: Path) -> ViewedObject:
    """The object in a file that ``write_object`` wrote."""
    arrays = _read_arrays(path)
    about = json.loads(arrays["about"].tobytes())
    ends = arrays["ends"].tolist()
    pictures = arrays["pictures"].tobytes()
    return ViewedObject(
        name=about.pop("name"),
        category=about.pop("category"),
        pictures=tuple(pictures[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)),
        cameras=torch.from_numpy(arrays["cameras"].astype(np.float32)),
        points=torch.from_numpy(arrays["points"].astype(np.float32)),
        normals=torch.from_numpy(arrays["normals"].astype(np.float32)),
        about=about,
    )


def read_about(path: Path) -> dict[str, Any]:
    """What a file says of its object, without reading the rest."""
    found: dict[str, Any] = json.loads(_read_arrays(path, ("about",))["about"].tobytes())
    return found


def _read_arrays(path: Path, names: tuple[str, ...] = tuple(ARRAYS)) -> dict[str, np.ndarray]:
    try:
        arrays = read_npz(path, names)
    except UnreadableArrays as error:
        raise DataError(
            f"prepared object {str(path)!r} cannot be read: {error}",
            remedy="Remove it and run 'hotlap mesh views' again",
        ) from error
    for name, array in arrays.items():
        if array.ndim != ARRAYS[name]:
            raise DataError(f"prepared object {str(path)!r} has {name} of shape {array.shape}")
    return arrays
