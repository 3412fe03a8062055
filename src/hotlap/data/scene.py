"""Scenes from disk: which reader a folder asks for, and the types that all of them give back."""

from __future__ import annotations

from pathlib import Path

from hotlap.base.errors import ConfigError, DataError
from hotlap.data.colmap import MODEL_FOLDERS, find_model, read_colmap
from hotlap.data.pinhole import Lens, Pinhole
from hotlap.data.transforms import find_transforms, read_transforms
from hotlap.data.view import HOLD_OUT_EVERY, LoadedView, Scene, View
from hotlap.data.view_pixels import load_view

__all__ = ["HOLD_OUT_EVERY", "Lens", "LoadedView", "Pinhole", "Scene", "View", "load_view", "read_scene"]


def read_scene(
    path: Path | str,
    images: str = "images",
    factor: int | None = None,
    *,
    white_background: bool | None = None,
    skip_missing: bool = False,
) -> Scene:
    """The scene in a folder: a COLMAP model, or a transforms.json as NeRF's synthetic scenes and nerfstudio have it.

    With ``factor`` 2, 4 or 8 pictures come from ``images_2`` and so on; without such a folder they are scaled as they
    are loaded. Transparent pixels are put on white in NeRF's synthetic scenes and on black elsewhere, unless
    ``white_background`` says otherwise. A view without its picture is an error, or left out with ``skip_missing``.
    """
    folder = Path(path)
    only = folder.name if folder.is_file() and folder.suffix == ".json" else ""
    folder = folder.parent if only else folder
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "does not exist"
        raise DataError(f"scene folder {str(folder)!r} {what}")
    if only or (find_model(folder, MODEL_FOLDERS) is None and find_transforms(folder)):
        if images != "images":
            raise ConfigError(
                f"images = {images!r} is not for a scene with a transforms file, which names its pictures itself",
                remedy="Use factor for smaller pictures",
            )
        return read_transforms(folder, factor, only=only, white_background=white_background, skip_missing=skip_missing)
    if find_model(folder) is None:
        raise DataError(
            f"folder {str(folder)!r} is no scene",
            expected="sparse/0 with cameras.bin and images.bin, or a transforms.json",
            remedy="Name the folder above sparse/ and images/; photographs alone go to 'hotlap splat from-photos'",
        )
    white = bool(white_background)
    return read_colmap(folder, images, factor, white_background=white, skip_missing=skip_missing)
