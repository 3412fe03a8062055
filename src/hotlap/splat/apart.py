"""Results kept apart from what a scene is made of: photographs, masks and cameras, often the only copy there is."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hotlap.base.errors import ConfigError
from hotlap.data.colmap import find_model
from hotlap.data.scene import Scene


def check_apart(out: Path, kept: Iterable[Path], below: Iterable[str] = (), root: Path | None = None) -> None:
    """Refuses a folder for results if files would be written beside those in the folders ``kept``.

    ``below`` names the folders inside ``out`` that are written to. ``root`` may have a folder of results, but its own
    folders, such as the images, may not.
    """
    place = out.resolve()
    whole = None if root is None else root.resolve()
    for folder in kept:
        own = folder.resolve()
        is_among = own == place or any(own.is_relative_to(place / name) for name in below)
        if whole is not None and whole in own.parents and whole in place.parents:
            is_among = is_among or place.is_relative_to(own) or own.is_relative_to(place)
        if is_among:
            raise ConfigError(
                f"out = {str(out)!r} would put results among the files in {str(folder)!r}",
                expected="a folder of its own",
                remedy="Choose another one with --out; a new folder beside those files will do",
            )


def scene_folders(scene: Scene) -> tuple[Path, ...]:
    """The folders that a scene's files lie in."""
    model = find_model(scene.folder)
    pictures = [path.parent for view in scene.views for path in (view.image, view.mask) if path is not None]
    return tuple(dict.fromkeys([scene.folder, *([model] if model else []), *pictures]))
