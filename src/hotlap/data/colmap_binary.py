"""COLMAP's binary files, read and written: cameras.bin, images.bin and points3D.bin, little endian."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from hotlap.base.errors import DataError
from hotlap.data.colmap_model import MODELS, ColmapCamera, ColmapImage, ColmapModel, by_id
from hotlap.data.file_bytes import Front, read_whole
from hotlap.records.run import write_atomic

_COUNT = struct.Struct("<Q")
_CAMERA = struct.Struct("<iiQQ")
_IMAGE = struct.Struct("<i7di")
_POINT = struct.Struct("<Q3d3BdQ")
_POINT_ROW = np.dtype([("id", "<u8"), ("at", "<f8", 3), ("color", "u1", 3), ("error", "<f8"), ("track", "<u8")])
_POINT_2D_BYTES, _TRACK_BYTES = 24, 8
_LEAST_IMAGE = _IMAGE.size + 1 + _COUNT.size


def read_binary(folder: Path) -> ColmapModel:
    """The model in a folder with the three ``.bin`` files; a missing points3D.bin means no points."""
    cameras, images = read_cameras(folder / "cameras.bin"), read_images(folder / "images.bin")
    path = folder / "points3D.bin"
    points, colors = read_points(path) if path.is_file() else (np.zeros((0, 3)), np.zeros((0, 3), np.uint8))
    return ColmapModel(cameras=cameras, images=images, points=points, colors=colors)


def read_cameras(path: Path) -> dict[int, ColmapCamera]:
    """The cameras of a cameras.bin, by number."""
    front = Front(path, read_whole(path))
    (count,) = front.take(_COUNT)
    front.need(count, _CAMERA.size, "a camera")
    cameras = []
    for _ in range(count):
        camera_id, model, width, height = front.take(_CAMERA)
        if model not in MODELS:
            raise DataError(
                f"file {str(path)!r} gives camera {camera_id} the model {model}",
                expected=f"a number from 0 to {max(MODELS)}",
            )
        params = front.take(struct.Struct(f"<{MODELS[model][1]}d"))
        cameras.append(ColmapCamera(camera_id=camera_id, model=model, width=width, height=height, params=params))
    front.end()
    return by_id(cameras, str(path))


def read_images(path: Path) -> tuple[ColmapImage, ...]:
    """The photographs of an images.bin; their observed points are skipped."""
    front = Front(path, read_whole(path))
    (count,) = front.take(_COUNT)
    front.need(count, _LEAST_IMAGE, "an image")
    images = []
    for _ in range(count):
        image_id, *numbers, camera_id = front.take(_IMAGE)
        name = front.name()
        (num_points,) = front.take(_COUNT)
        front.skip(num_points, _POINT_2D_BYTES, f"an observation of {name!r}")
        quat, shift = tuple(numbers[:4]), tuple(numbers[4:])
        images.append(ColmapImage(image_id=image_id, quat=quat, shift=shift, camera_id=camera_id, name=name))
    front.end()
    return tuple(images)


def read_points(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Points [P, 3] float64 and colours [P, 3] uint8 of a points3D.bin; their tracks are skipped."""
    front = Front(path, read_whole(path))
    (count,) = front.take(_COUNT)
    front.need(count, _POINT.size, "a point")
    starts = _point_starts(front, count)
    if front.at == _COUNT.size + count * _POINT.size:  # no tracks: the records lie side by side
        table = np.frombuffer(front.content, _POINT_ROW, count, _COUNT.size)
    else:
        windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(front.content, np.uint8), _POINT.size)
        table = windows[starts].view(_POINT_ROW)[:, 0]
    front.end()
    return table["at"].astype(np.float64), table["color"].copy()


def _point_starts(front: Front, count: int) -> np.ndarray:  # [count] int64
    """Where each point's record begins; ``front`` is moved past the last track."""
    # One step per point and no calls of our own: there may be millions of points.
    content, at, last = front.content, front.at, len(front.content) - _POINT.size
    track_at, track_length = _POINT.size - _COUNT.size, _COUNT.unpack_from
    starts = []
    for _ in range(count):
        if at > last:
            break
        starts.append(at)
        at += _POINT.size + _TRACK_BYTES * track_length(content, at + track_at)[0]
    if len(starts) < count or at > len(content):
        front.at = starts[-1] if starts else front.at
        front.need(1, at + _POINT.size - front.at, "a point with its track")
    front.at = at
    return np.array(starts, np.int64)


def write_binary(folder: Path, model: ColmapModel) -> None:
    """``cameras.bin``, ``images.bin`` and ``points3D.bin`` in a folder that exists; without tracks."""
    cameras = [_COUNT.pack(len(model.cameras))]
    for camera in model.cameras.values():
        cameras.append(_CAMERA.pack(camera.camera_id, camera.model, camera.width, camera.height))
        cameras.append(struct.pack(f"<{len(camera.params)}d", *camera.params))
    images = [_COUNT.pack(len(model.images))]
    for image in model.images:
        images.append(_IMAGE.pack(image.image_id, *image.quat, *image.shift, image.camera_id))
        images.append(image.name.encode("utf-8") + b"\0" + _COUNT.pack(0))
    points = [_COUNT.pack(len(model.points))]
    rows = zip(model.points.tolist(), model.colors.tolist(), strict=True)
    points += [_POINT.pack(number, *at, *color, 0.0, 0) for number, (at, color) in enumerate(rows, 1)]
    write_atomic(folder / "cameras.bin", b"".join(cameras))
    write_atomic(folder / "images.bin", b"".join(images))
    write_atomic(folder / "points3D.bin", b"".join(points))
