"""``hotlap splat render``: trained splats drawn from their held-out cameras, an orbit, or a path in a file."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hotlap.base import events
from hotlap.base.errors import ConfigError, DataError, EnvironmentUnusable, StorageError
from hotlap.base.events import Emit, ignore
from hotlap.data.file_bytes import make_folders
from hotlap.data.picture_file import SUFFIXES, require_pillow
from hotlap.data.scene import Pinhole, Scene
from hotlap.device.probe import get_device
from hotlap.splat.album import as_bytes, file_names, save_picture
from hotlap.splat.apart import check_apart, scene_folders
from hotlap.splat.cameras import Shot, look_at, orbit
from hotlap.splat.config import SplatRenderConfig, SplatTrainConfig
from hotlap.splat.judge import Model
from hotlap.splat.judging import REMEDY
from hotlap.splat.opened import Opened, open_splats
from hotlap.splat.outcome import CAMERAS, as_model
from hotlap.splat.pictures import planned_camera, planned_shot
from hotlap.splat.room import told_of_memory
from hotlap.splat.stage import open_scene, split_views

PLAIN_SIZE = (640, 480)
"""Width and height where nothing else says."""
VIDEO, GIF = ".mp4", ".gif"
CRF = "10"
"""How much a video loses: x264 has 0 for nothing and 23 for usual; splats are full of fine grain."""
OTHER_KINDS = (*SUFFIXES, ".avi", ".mkv", ".mov", ".m4v", ".webm", ".apng")
MOST_SKEW = 1e-3
"""How far a rotation that was written with few digits may be from one."""
MOST_SIDE = 16384
"""Pixels of a width or height that is asked for, and in all the square of it: more is no picture but a mistake."""


def render(config: SplatRenderConfig, emit: Emit = ignore) -> list[Path]:
    """The files that were written: PNG files, or one video or GIF."""
    opened, device = open_splats(config.model, emit=emit), get_device(config.device)
    out = Path(config.out) if config.out else (opened.folder or Path()) / "renders"
    shots = _sized(find_shots(config, opened, out), config)
    model = opened.model(device, config.scene)
    if config.background != "auto":
        behind = [1.0, 1.0, 1.0] if config.background == "white" else None
        model = dataclasses.replace(as_model(opened.splats, device, behind), antialiased=model.antialiased)
    _check_name(out)
    moving = {VIDEO: write_video, GIF: write_gif}.get(out.suffix.lower())
    if moving is not None:
        _check_one_size(shots, out)
    emit(events.start("render", len(shots)))
    frames = _frames(model, shots, device, emit)
    if moving is not None:
        make_folders(out)
        try:
            # Beside its place first: what is ended halfway cannot be played, and an older one would be lost.
            with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.stem}-") as made:
                moving(Path(made) / out.name, frames, config.fps).replace(out)
            return [out]
        except OSError as error:
            raise StorageError(f"cannot write {str(out)!r}: {error.strerror or error}", remedy=REMEDY) from error
    written = []
    for name, picture in zip(file_names([shot.name for shot in shots]), frames, strict=True):
        path = out / name
        save_picture(path, picture)
        written.append(path)
    return written


def _check_name(out: Path) -> None:
    """Refuses the name of another kind of file, where a folder of that name would be a surprise."""
    if out.suffix.lower() in OTHER_KINDS and not out.is_dir():
        raise ConfigError(
            f"out = {str(out)!r} is no kind of file that is written",
            expected=f"a name that ends in {VIDEO} or {GIF}, or that of a folder for PNG files",
        )


def _check_one_size(shots: list[Shot], out: Path) -> None:
    """Refuses cameras of several sizes: all pictures of a video have one."""
    sizes = sorted({(shot.camera.width, shot.camera.height) for shot in shots})
    if len(sizes) > 1:
        raise ConfigError(
            f"out = {str(out)!r} with pictures of {len(sizes)} sizes, "
            + ", ".join(f"{width}x{height}" for width, height in sizes[:4]) + (", ..." if len(sizes) > 4 else ""),
            expected="one size",
            remedy="Set --width and --height, or name a folder for PNG files",
        )  # fmt: skip


def _frames(model: Model, shots: list[Shot], device: torch.device, emit: Emit) -> Iterator[np.ndarray]:
    for number, shot in enumerate(shots):
        pose = torch.from_numpy(shot.pose.astype(np.float32)).to(device)
        intrinsics = torch.from_numpy(shot.camera.matrix().astype(np.float32)).to(device)
        height, width = shot.camera.height, shot.camera.width
        with told_of_memory(f"a picture of {width}x{height} pixels", "Set a smaller --width, or another --device"):
            drawn = as_bytes(model.draw(pose, intrinsics, height, width))
        yield drawn
        emit(events.advance("render", number + 1, len(shots)))
    emit(events.finish("render"))


def find_shots(config: SplatRenderConfig, opened: Opened, out: Path | None = None) -> list[Shot]:
    """The cameras that the settings ask for; ``out`` must be apart from the scene that they are taken from."""
    if config.frames < 1 or config.fps < 1:
        raise ConfigError(f"frames = {config.frames}, fps = {config.fps} are not valid", expected="at least 1")
    if config.scene and opened.config is None:
        raise ConfigError(f"scene = {config.scene!r} with model = {config.model!r}", expected="a training's folder")
    if config.path == "orbit":
        return _orbit_shots(config, opened, out)
    if config.path != "views":
        return read_path(Path(config.path))
    if opened.config is None:
        raise ConfigError(
            f"path = 'views' with model = {config.model!r}",
            expected="the folder of a training, whose views are known",
            remedy="Take --path orbit or a JSON file of cameras",
        )
    settings = opened.settings(config.scene)
    scene = _scene_apart(settings, out)
    train, held_out = split_views(scene, settings)
    shots = [planned_shot(view, settings.scale, settings.max_side) for view in held_out or train]
    if held_out or not opened.config.poses or opened.folder is None:
        return shots
    refined = read_named(opened.folder / CAMERAS)  # the splats fit the training views' poses as they are now
    return [dataclasses.replace(shot, pose=refined.get(shot.name, shot).pose) for shot in shots]


def _orbit_shots(config: SplatRenderConfig, opened: Opened, out: Path | None) -> list[Shot]:
    """Around what a training's cameras look at; around the middle of the splats where no cameras are known."""
    good = opened.splats.take(~opened.splats.bad())
    if opened.config is not None:
        scene = _scene_apart(opened.settings(config.scene), out)
        poses = orbit(scene.views, scene.points, config.frames)
        camera = planned_camera(scene.views[0], opened.config.scale, opened.config.max_side)
    else:
        if not len(good):
            raise DataError(f"model = {config.model!r} has no splat that can be drawn")
        middle = np.median(good.means, axis=0).astype(float)
        radius = 3 * float(np.median(np.linalg.norm(good.means - middle, axis=1))) or 1.0
        up = np.array([0.0, -1.0, 0.0])
        turns = [2 * math.pi * n / config.frames for n in range(config.frames)]
        places = [middle + radius * np.array([math.cos(turn), -0.3, math.sin(turn)]) for turn in turns]
        poses = np.stack([look_at(place, middle, up) for place in places])
        width, height = PLAIN_SIZE
        camera = Pinhole(width=width, height=height, fx=width, fy=width, cx=width / 2, cy=height / 2)
    return [Shot(name=f"orbit_{n:04d}", pose=pose, camera=camera) for n, pose in enumerate(poses)]


def _scene_apart(settings: SplatTrainConfig, out: Path | None) -> Scene:
    """The scene of a training; refuses to write where its files are."""
    scene = open_scene(settings)
    if out is not None:
        check_apart(out, scene_folders(scene), root=scene.folder)
    return scene


def read_path(path: Path) -> list[Shot]:
    """The cameras of a JSON file: a list of {width, height, fx, fy, [cx, cy], position, rotation (world from camera)},
    as ``cameras.json`` of a training has them, or with camera_from_world as four rows in place of the last two.
    """
    return [
        dataclasses.replace(read_shot(row, f"camera {number} of {str(path)!r}"), name=f"frame_{number:04d}")
        for number, row in enumerate(_read_rows(path))
    ]


def read_named(path: Path) -> dict[str, Shot]:
    """The cameras of a training's ``cameras.json``, by the names of their pictures."""
    found = {}
    for number, row in enumerate(_read_rows(path)):
        shot = read_shot(row, f"camera {number} of {str(path)!r}")
        name = str(row.get("img_name", ""))
        found[name] = dataclasses.replace(shot, name=name)
    return found


def _read_rows(path: Path) -> list[Any]:
    """The list that a JSON file of cameras holds."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"path = {str(path)!r} cannot be read: {error.strerror or error}", expected="views, orbit or a JSON file"
        ) from error
    except ValueError as error:
        raise DataError(f"path = {str(path)!r} is no JSON: {error}") from error
    if not isinstance(rows, list) or not rows:
        raise DataError(f"path = {str(path)!r} holds no list of cameras")
    return rows


def read_shot(row: Any, where: str) -> Shot:
    """The camera that a mapping describes, as :func:`read_path` has it; ``where`` names it in errors."""
    try:
        width, height = int(row["width"]), int(row["height"])
        camera = Pinhole(
            width=width, height=height, fx=float(row["fx"]), fy=float(row["fy"]),
            cx=float(row.get("cx", width / 2)), cy=float(row.get("cy", height / 2)),
        )  # fmt: skip
        if "camera_from_world" in row:
            pose = np.array(row["camera_from_world"], dtype=float).reshape(4, 4)
        else:
            turn = np.array(row["rotation"], dtype=float).reshape(3, 3).T
            pose = np.eye(4)
            pose[:3, :3], pose[:3, 3] = turn, -turn @ np.array(row["position"], dtype=float).reshape(3)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DataError(f"{where} is malformed: {type(error).__name__} {error}") from error
    if not np.isfinite(pose).all():
        raise DataError(f"{where} has a pose that is not finite")
    with np.errstate(over="ignore"):
        if not all(np.isfinite(numbers.astype(np.float32)).all() for numbers in (pose, camera.matrix())):
            raise DataError(f"{where} has numbers beyond those of 32 bits", expected="smaller ones")
    turn = pose[:3, :3]
    is_turn = np.abs(turn @ turn.T - np.eye(3)).max() <= MOST_SKEW and np.linalg.det(turn) > 0
    if not is_turn:
        raise DataError(
            f"{where} has a pose that no camera can have: its nine numbers are no rotation",
            expected="rows of length 1, at right angles, right-handed",
        )
    if not np.allclose(pose[3], [0, 0, 0, 1], rtol=0, atol=MOST_SKEW):
        raise DataError(f"{where} has {pose[3].tolist()} as its fourth row", expected="0, 0, 0, 1")
    pose[3] = 0, 0, 0, 1
    return Shot(name="frame", pose=pose, camera=camera)


def _sized(shots: list[Shot], config: SplatRenderConfig) -> list[Shot]:
    """The same cameras at the size that was asked for."""
    for name, value in (("width", config.width), ("height", config.height)):
        if value is not None and not 1 <= value <= MOST_SIDE:
            raise ConfigError(f"{name} = {value} is not valid", expected=f"1 to {MOST_SIDE}")
    sized = []
    for shot in shots:
        width, height = shot.camera.width, shot.camera.height
        if config.width or config.height:
            width = config.width or max(1, round(width * (config.height or 1) / height))
            height = config.height or max(1, round(shot.camera.height * width / shot.camera.width))
        if width * height > MOST_SIDE**2:
            raise ConfigError(
                f"{shot.name} would have {width}x{height} pixels", expected=f"at most {MOST_SIDE**2} in all",
                remedy="Set --width and --height",
            )  # fmt: skip
        sized.append(dataclasses.replace(shot, camera=shot.camera.scaled_to(width, height)))
    return sized


def write_video(path: Path, frames: Iterator[np.ndarray], fps: int) -> Path:
    """An MP4 file of the pictures, H.264, cut to even sizes as it asks for."""
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise EnvironmentUnusable(
            f"out = {str(path)!r} needs imageio-ffmpeg, which is not installed",
            remedy="pip install 'hotlap[video]', or name a folder for PNG files",
        ) from error
    first = _even(next(frames), path)
    size = f"{first.shape[1]}x{first.shape[0]}"
    command = [
        imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size,
        "-r", str(fps), "-i", "-", "-an", "-vcodec", "libx264", "-pix_fmt", "yuv420p", "-crf", CRF, str(path),
    ]  # fmt: skip
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said) as ffmpeg,
    ):
        assert ffmpeg.stdin is not None
        with suppress(BrokenPipeError):  # it has ended early, and is asked below why
            for frame in chain([first], (_even(frame, path) for frame in frames)):
                ffmpeg.stdin.write(frame.tobytes())
        with suppress(BrokenPipeError):
            ffmpeg.stdin.close()
        code = ffmpeg.wait()
        said.seek(0)
        why = said.read().decode(errors="replace").strip().splitlines()
    if code:
        raise OSError(f"ffmpeg ended with code {code}{f' ({why[-1]})' if why else ''}")
    return path


def _even(frame: np.ndarray, path: Path) -> np.ndarray:
    """The picture cut to even sides."""
    height, width = frame.shape[:2]
    if min(height, width) < 2:
        raise ConfigError(
            f"out = {str(path)!r} with pictures of {width}x{height} pixels", expected="at least 2x2 in a video"
        )
    return np.ascontiguousarray(frame[: height // 2 * 2, : width // 2 * 2])


def write_gif(path: Path, frames: Iterator[np.ndarray], fps: int) -> Path:
    """A GIF file that repeats, 128 colours a picture; it counts in hundredths of a second."""
    pillow = require_pillow()
    pictures = [pillow.fromarray(frame).quantize(128, dither=pillow.Dither.NONE) for frame in frames]
    duration = max(20, round(100 / fps) * 10)
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=duration, loop=0)
    return path
