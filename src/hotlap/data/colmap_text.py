"""COLMAP's text files, read and written: cameras.txt, images.txt and points3D.txt, with either kind of line end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np

from hotlap.base.errors import DataError
from hotlap.data.colmap_model import MODEL_NUMBERS, MODELS, ColmapCamera, ColmapImage, ColmapModel, by_id
from hotlap.data.file_bytes import read_text
from hotlap.records.run import write_atomic

T = TypeVar("T")


def read_model_text(folder: Path) -> ColmapModel:
    """The model in a folder with the three ``.txt`` files; a missing points3D.txt means no points."""
    cameras, images = read_cameras(folder / "cameras.txt"), read_images(folder / "images.txt")
    path = folder / "points3D.txt"
    points, colors = read_points(path) if path.is_file() else (np.zeros((0, 3)), np.zeros((0, 3), np.uint8))
    return ColmapModel(cameras=cameras, images=images, points=points, colors=colors)


def read_cameras(path: Path) -> dict[int, ColmapCamera]:
    """The cameras of a cameras.txt, by number."""
    return by_id([_parse(path, line, text, _camera) for line, text in _lines(path) if text], str(path))


def read_images(path: Path) -> tuple[ColmapImage, ...]:
    """The photographs of an images.txt: each has two lines, and the second, of observations, may be empty."""
    images, observations = [], False
    for line, text in _lines(path):
        if observations:
            _parse(path, line, text, _check_observations)
            observations = False
        elif text:
            images.append(_parse(path, line, text, _image))
            observations = True
    return tuple(images)


def read_points(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Points [P, 3] float64 and colours [P, 3] uint8 of a points3D.txt."""
    rows = [_parse(path, line, text, _point) for line, text in _lines(path) if text]
    points = np.array([at for at, _ in rows], dtype=np.float64).reshape(-1, 3)
    return points, np.array([color for _, color in rows], dtype=np.uint8).reshape(-1, 3)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Every line that is no comment, stripped, with its number; empty ones too, for they mean something."""
    for number, text in enumerate(read_text(path).split("\n"), 1):
        stripped = text.strip()
        if not stripped.startswith("#"):
            yield number, stripped


def _parse(path: Path, line: int, text: str, read: Callable[[str], T]) -> T:
    try:
        return read(text)
    except (ValueError, IndexError, OverflowError) as error:
        raise DataError(f"file {str(path)!r}, line {line} cannot be read ({error}): {text[:80]!r}") from error


def _camera(text: str) -> ColmapCamera:
    camera_id, name, width, height, *params = text.split()
    if name not in MODEL_NUMBERS:
        raise DataError(f"camera {camera_id} has the model {name!r}", expected=f"one of {', '.join(MODEL_NUMBERS)}")
    model = MODEL_NUMBERS[name]
    if len(params) != MODELS[model][1]:
        raise ValueError(f"{name} has {MODELS[model][1]} parameters, not {len(params)}")
    numbers = tuple(float(value) for value in params)
    return ColmapCamera(camera_id=int(camera_id), model=model, width=int(width), height=int(height), params=numbers)


def _image(text: str) -> ColmapImage:
    image_id, *numbers, camera_id, name = text.split(maxsplit=9)  # a name may have spaces in it
    w, x, y, z, *shift = (float(value) for value in numbers)
    a, b, c = shift
    return ColmapImage(
        image_id=int(image_id), quat=(w, x, y, z), shift=(a, b, c), camera_id=int(camera_id), name=name
    )  # fmt: skip


def _check_observations(text: str) -> None:
    """Refuses the next photograph in their place: of a file without its empty lines every other one would be lost."""
    fields = text.split()
    if len(fields) % 3 or (fields and not fields[-1].lstrip("-").isdecimal()):
        raise ValueError("a photograph's second line holds x, y and a point's number for each observation, or nothing")


def _point(text: str) -> tuple[list[float], list[int]]:
    fields = text.split(maxsplit=7)
    if len(fields) < 7:
        raise ValueError(f"a point has at least 7 fields, not {len(fields)}")
    color = [int(value) for value in fields[4:7]]
    if not all(0 <= value <= 255 for value in color):
        raise ValueError(f"colour {color} is not within 0 to 255")
    return [float(value) for value in fields[1:4]], color


def write_model_text(folder: Path, model: ColmapModel) -> None:
    """``cameras.txt``, ``images.txt`` and ``points3D.txt`` in a folder that exists; without tracks."""
    cameras = ["# CAMERA_ID MODEL WIDTH HEIGHT PARAMS[]"]
    for camera in model.cameras.values():
        head = [camera.camera_id, MODELS[camera.model][0], camera.width, camera.height]
        cameras.append(" ".join(map(str, [*head, *camera.params])))
    images = ["# IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME, then a line of observations"]
    for image in model.images:
        fields = [image.image_id, *image.quat, *image.shift, image.camera_id, image.name]
        images += [" ".join(map(str, fields)), ""]
    points = ["# POINT3D_ID X Y Z R G B ERROR TRACK[]"]
    rows = zip(model.points.tolist(), model.colors.tolist(), strict=True)
    points += [" ".join(map(str, [number, *at, *color, 0.0])) for number, (at, color) in enumerate(rows, 1)]
    for name, lines in (("cameras", cameras), ("images", images), ("points3D", points)):
        write_atomic(folder / f"{name}.txt", "\n".join(lines) + "\n")
