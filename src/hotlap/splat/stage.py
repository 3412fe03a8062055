"""What a training looks at: the scene read, its views split, their pictures decoded, their cameras packed."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from hotlap.base import events
from hotlap.base.errors import ConfigError, DataError, StorageError
from hotlap.base.events import Emit
from hotlap.base.homes import cache_home
from hotlap.data.drawn_scene import DrawnScene, write_drawn_scene
from hotlap.data.scene import Scene, View, read_scene
from hotlap.splat.cameras import Cameras, pack_cameras, scene_extent
from hotlap.splat.config import SplatTrainConfig
from hotlap.splat.pictures import Pictures, choose_place, load_scaled, pick_views, planned_camera
from hotlap.splat.room import check_room

DRAWN = "drawn"
"""The scene's name that stands for one that is drawn."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """A scene ready to be trained on."""

    scene: Scene
    views: tuple[View, ...]
    """Those that are trained on."""
    cameras: Cameras
    pictures: Pictures
    test_cameras: Cameras | None
    """None where nothing is held out."""
    test_pictures: Pictures | None
    extent: float

    def close(self) -> None:
        self.pictures.close()
        if self.test_pictures is not None:
            self.test_pictures.close()


def scene_place(scene: str) -> str:
    """A scene's name that means the same in every folder, however it was spelt."""
    return scene if scene in ("", DRAWN) else str(Path(scene).resolve())


def open_scene(config: SplatTrainConfig) -> Scene:
    """The scene that the settings name."""
    if not config.scene:
        raise ConfigError("no scene was given", remedy="Name its folder, as in 'hotlap splat train my_scene/'")
    path = drawn_folder() if config.scene == DRAWN else Path(config.scene)
    white = {"white": True, "black": False}.get(config.background)
    scene = read_scene(path, config.images, config.factor, white_background=white, skip_missing=config.skip_missing)
    if config.masks:
        return scene
    return replace(scene, views=tuple(replace(view, mask=None) for view in scene.views))


def split_views(scene: Scene, config: SplatTrainConfig) -> tuple[tuple[View, ...], tuple[View, ...]]:
    """The views to train on and those held out; which ones depends on names alone, never on the seed."""
    if config.image_index is not None:
        if not 0 <= config.image_index < len(scene.views):
            raise ConfigError(
                f"image_index = {config.image_index} is not valid", expected=f"0 to {len(scene.views) - 1}"
            )
        one = scene.views[config.image_index]
        return (one,), (one,)
    train, held_out = replace(scene, views=pick_views(scene.views, config.max_images)).split(config.hold_out)
    if not train:
        raise DataError(
            f"the scene {str(scene.folder)!r} has {len(scene.views)} pictures, of which none is left to train on",
            remedy="Hold out fewer with --hold-out",
        )
    return train, held_out


def open_stage(config: SplatTrainConfig, device: torch.device, emit: Emit) -> Stage:
    """Reads everything; a picture that cannot be read is told before the first step."""
    scene = open_scene(config)
    for said in scene.notes():
        emit(events.warn(said))
    train, held_out = split_views(scene, config)
    check_room((planned_camera(view, config.scale, config.max_side) for view in train), device)
    load = partial(load_scaled, scale=config.scale, max_side=config.max_side)
    emit(events.start("pictures", len(train) + len(held_out), f"{len(train)} to train on"))
    is_open = config.images_on == "auto"
    place = choose_place(train, device, config.scale, config.max_side) if is_open else config.images_on
    pictures = Pictures(train, load, device, place)
    tested = Pictures(held_out, load, device, "disk" if pictures.place == "disk" else "host") if held_out else None
    emit(events.finish("pictures", f"kept on {pictures.place}"))
    if not any(pictures.counts):
        raise DataError(
            f"the masks of the scene {config.scene!r} leave no pixel to train on",
            expected="masks that are black only where pixels are to be left out",
            remedy="Invert them, or train without them (--no-masks)",
        )
    return Stage(
        scene=scene,
        views=train,
        cameras=pack_cameras(train, pictures.pinholes, device),
        pictures=pictures,
        test_cameras=pack_cameras(held_out, tested.pinholes, device) if tested else None,
        test_pictures=tested,
        extent=scene_extent(train, scene.points),
    )


def drawn_folder(drawn: DrawnScene | None = None) -> Path:
    """The folder of a drawn scene in the user's cache, drawn when it is first asked for."""
    drawn = drawn or DrawnScene()
    base = cache_home() / "hotlap" / "scenes"
    folder = base / hashlib.sha256(repr(drawn).encode()).hexdigest()[:12]
    if folder.is_dir():
        return folder
    try:
        base.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=base) as made:
            write_drawn_scene(Path(made) / "scene", drawn)
            try:
                (Path(made) / "scene").rename(folder)
            except OSError:
                if not folder.is_dir():  # another process was faster
                    raise
    except OSError as error:
        raise StorageError(
            f"the drawn scene cannot be kept in {str(base)!r}: {error}",
            remedy="Set XDG_CACHE_HOME to a folder that can be written",
        ) from error
    return folder
