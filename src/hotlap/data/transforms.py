"""Scenes with a transforms.json: NeRF's synthetic ones, and those of instant-ngp and nerfstudio.

Poses there are the world from a camera that looks along -z with y up; ours look along +z with y down.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from hotlap.base.errors import DataError
from hotlap.data.file_bytes import read_text
from hotlap.data.pinhole import Lens, Pinhole
from hotlap.data.ply import read_points
from hotlap.data.posed import (
    BLACK,
    WHITE,
    Posed,
    check_factor,
    check_unique,
    find_picture,
    finish_view,
    finite_points,
    random_points,
    rigid,
    with_names_of,
)
from hotlap.data.view import Scene, first_few
from hotlap.data.view_pixels import PictureHead, read_head

SYNTHETIC_BOX = 1.3
"""Half the side of the cube about the origin in which NeRF's synthetic scenes lie."""
PARTS = ("train", "test", "val")
POINT_FILES = ("points3d.ply", "points3D.ply", "sparse_pc.ply")
_MODELS = {
    "PINHOLE": None, "SIMPLE_PINHOLE": None, "OPENCV": "opencv", "RADIAL": "opencv", "SIMPLE_RADIAL": "opencv",
    "PERSPECTIVE": "opencv", "OPENCV_FISHEYE": "fisheye",
}  # fmt: skip
_COEFFICIENTS = {"opencv": ("k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6"), "fisheye": ("k1", "k2", "k3", "k4")}
_OUR_AXES = np.diag([1.0, -1.0, -1.0, 1.0])


def find_transforms(folder: Path) -> tuple[str, ...]:
    """The files of a folder that make a scene: transforms.json, or those of its parts; empty if there are none."""
    if (folder / "transforms.json").is_file():
        return ("transforms.json",)
    parts = [f"transforms_{part}.json" for part in PARTS if (folder / f"transforms_{part}.json").is_file()]
    if "transforms_test.json" in parts and "transforms_val.json" in parts:
        parts.remove("transforms_val.json")  # published figures are those of the test views
    return tuple(parts)


def read_transforms(
    folder: Path,
    factor: int | None = None,
    *,
    only: str = "",
    white_background: bool | None = None,
    skip_missing: bool = False,
) -> Scene:
    """The scene of a folder with transforms files, or of ``only`` one of them."""
    files = (only,) if only else find_transforms(folder)
    if not files:
        raise DataError(f"folder {str(folder)!r} has no transforms.json")
    shrink = check_factor(factor)
    texts = {name: _read_json(folder / name) for name in files}
    synthetic = all("camera_angle_x" in text and "fl_x" not in text for text in texts.values())
    background = WHITE if (synthetic if white_background is None else white_background) else BLACK
    found: list[tuple[Posed, PictureHead, int, str]] = []
    missing: list[str] = []
    for file, text in texts.items():
        _read_frames(folder, file, text, shrink, found, missing)
    _check_missing(missing, len(found), folder, skip_missing)
    check_unique((posed.name for posed, *_ in found), folder)
    made = [finish_view(posed, head, times, background) for posed, head, times, _ in found]
    views = tuple(sorted(made, key=lambda view: view.name))
    points, colors, num_bad = _read_points(folder, list(texts.values()))
    bare = len(points) == 0
    if bare:
        points, colors = random_points(views, SYNTHETIC_BOX if synthetic else None)
    return Scene(
        folder=folder, views=views, points=points, colors=colors, random_points=bare, num_bad_points=num_bad,
        white_background=background == WHITE if any(head.transparent for _, head, _, _ in found) else None,
        held_out=_held_out(texts, found, views, folder), missing=tuple(missing),
    )  # fmt: skip


def _held_out(texts: dict[str, dict], found: list, views: tuple, folder: Path) -> tuple[str, ...] | None:
    """What the files set aside: the frames of another file than the training one, or those of a list of names."""
    if len(texts) > 1:
        first = "transforms_train.json" if "transforms_train.json" in texts else next(iter(texts))
        return tuple(sorted(posed.name for posed, _, _, file in found if file != first))
    (text,) = texts.values()
    for key in ("test_filenames", "val_filenames"):
        names = text.get(key)
        if isinstance(names, list) and names:
            return with_names_of({_tidy(str(name)) for name in names}, views, folder)
    return None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"file {str(path)!r} is no JSON: {error}") from error
    if not isinstance(value, dict) or not isinstance(value.get("frames"), list) or not value["frames"]:
        raise DataError(f"file {str(path)!r} has no frames", expected="an object with a list 'frames'")
    return value


def _read_frames(folder: Path, file: str, text: dict, shrink: int, found: list, missing: list[str]) -> None:
    """Adds the frames of one file to ``found``, and to ``missing`` the names of those without a picture."""
    for number, frame in enumerate(text["frames"]):
        if not isinstance(frame, dict) or not isinstance(frame.get("file_path"), str) or not frame["file_path"]:
            raise DataError(f"frame {number} of {str(folder / file)!r} has no file_path")
        said = {**text, **frame}
        name = _tidy(frame["file_path"])
        if "\0" in name:
            raise DataError(f"frame {number} of {str(folder / file)!r} is named {name!r}")
        picture, times = _find_picture(folder, name, shrink)
        if picture is None:
            missing.append(name)
            continue
        head = read_head(picture)
        camera, lens = _camera(said, head, name, shrink // times)
        mask = folder / said["mask_path"] if isinstance(said.get("mask_path"), str) else None
        if mask is not None and not mask.is_file():
            raise DataError(f"mask {str(mask)!r} of view {name!r} does not exist")
        pose = np.linalg.inv(_matrix(frame, name) @ _OUR_AXES)
        posed = Posed(name=name, image=picture, mask=mask, camera_from_world=pose, camera=camera, lens=lens)
        found.append((posed, head, times, file))


def _tidy(name: str) -> str:
    return name.replace("\\", "/").removeprefix("./")


def _find_picture(folder: Path, name: str, shrink: int) -> tuple[Path | None, int]:
    """A frame's picture, and how much smaller it is still to be made; for 4, ``images_4/a`` replaces ``images/a``."""
    if shrink > 1:
        parts = name.split("/")
        parts[-2:-1] = [f"{parts[-2]}_{shrink}"] if len(parts) > 1 else []
        smaller = find_picture(folder, "/".join(parts)) if len(parts) > 1 else None
        if smaller is not None:
            return smaller, 1
    return find_picture(folder, name), shrink


def _matrix(frame: dict, name: str) -> np.ndarray:  # [4, 4]
    try:
        matrix = np.array(frame["transform_matrix"], dtype=np.float64)
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise DataError(f"view {name!r} has no transform_matrix that is a matrix: {error!r}") from error
    return rigid(matrix, name)


def _number(said: dict, key: str, name: str, default: float | None = None) -> float:
    value = said.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e300:
        raise DataError(f"view {name!r} has {key} = {value!r}", expected="a finite number")
    return float(value)


def _camera(said: dict, head: PictureHead, name: str, shrunk: int) -> tuple[Pinhole, Lens | None]:
    """Camera and lens of a frame at the size that the file claims, or else that of the picture before it was shrunk."""
    width, height = (int(_number(said, key, name, 0)) for key in ("w", "h"))
    if width < 1 or height < 1:
        width, height = head.width * shrunk, head.height * shrunk
    if "fl_x" in said or "fl_y" in said:
        fx = _number(said, "fl_x" if "fl_x" in said else "fl_y", name)
        fy = _number(said, "fl_y", name, fx)
    else:
        fx = _focal(_number(said, "camera_angle_x", name), width, "camera_angle_x", name)
        fy = (
            _focal(_number(said, "camera_angle_y", name), height, "camera_angle_y", name)
            if "camera_angle_y" in said
            else fx
        )
    camera = Pinhole(
        width=width, height=height, fx=fx, fy=fy,
        cx=_number(said, "cx", name, width / 2), cy=_number(said, "cy", name, height / 2),
    )  # fmt: skip
    return camera, _lens(said, camera, name)


def _focal(angle: float, side: int, key: str, name: str) -> float:
    if not 0 < angle < math.pi:
        raise DataError(f"view {name!r} has {key} = {angle}", expected="an angle between 0 and pi")
    return side / (2 * math.tan(angle / 2))


def _lens(said: dict, camera: Pinhole, name: str) -> Lens | None:
    model = said.get("camera_model", "OPENCV")
    if said.get("is_fisheye") is True:
        model = "OPENCV_FISHEYE"
    if not isinstance(model, str) or model not in _MODELS:
        raise DataError(f"view {name!r} has camera_model = {model!r}", expected=f"one of {', '.join(_MODELS)}")
    kind = _MODELS[model]
    if kind is None:
        return None
    params = tuple(_number(said, key, name, 0.0) for key in _COEFFICIENTS[kind])
    if kind == "opencv" and not any(params):
        return None
    return Lens(model=kind, params=params, camera=camera)


def _read_points(folder: Path, texts: list[dict]) -> tuple[np.ndarray, np.ndarray, int]:
    named = [text["ply_file_path"] for text in texts if isinstance(text.get("ply_file_path"), str)]
    for name in named or POINT_FILES:
        path = folder / name
        if path.is_file():
            return finite_points(*read_points(path))
        if named:
            raise DataError(f"point cloud {str(path)!r}, named as ply_file_path, does not exist")
    return np.zeros((0, 3), np.float32), np.zeros((0, 3), np.uint8), 0


def _check_missing(missing: list[str], num_found: int, folder: Path, skip: bool) -> None:
    if missing and (not skip or not num_found):
        raise DataError(
            f"{len(missing)} of {len(missing) + num_found} pictures are not in {str(folder)!r}: {first_few(missing)}",
            remedy="Put them there, or ask for skip_missing to go on without them" if num_found
            else "Put them there, or correct the paths in the frames",
        )  # fmt: skip
