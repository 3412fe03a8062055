"""Where the views of an object were taken from, and where its points fall in them.

A camera is a row of five numbers as in the metadata of rendered ShapeNet: azimuth and elevation in degrees, rotation in
the plane (always 0), distance, field of view (not used: the focal length is fixed). World and camera frames are right
handed, y up; a camera looks along its own -z. Pictures are 224 x 224, and whole numbers are the centres of pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hotlap.base.errors import DataError, ShapeError

SIZE_PX = 224
FOCAL_PX = 248.0
CENTRE_PX = 112.0
FIELD_OF_VIEW_DEG = 25.0
"""The fifth number of a row; only files have it."""
MIN_DEPTH = 0.01
"""Points nearer than this, or behind the camera, are projected as if they were this far: no division by 0."""


@dataclass(frozen=True, eq=False)
class Cameras:
    """Cameras around the origin, any number of them in any leading dimensions."""

    camera_from_world: Tensor
    """[..., 3, 3] rotations: rows are the camera's axes x (right), y (up) and z (backward) in the world."""
    origin: Tensor
    """[..., 3] where the cameras stand in the world."""

    @classmethod
    def from_rows(cls, rows: Tensor) -> Cameras:  # [..., 5]
        """The cameras that rows of azimuth, elevation, rotation, distance and field of view describe.

        Everything stays on the device of ``rows``; :func:`checked_rows` is for numbers that a user gave.
        """
        if rows.shape[-1:] != (5,):
            raise ShapeError(
                f"rows must be [..., 5], got {list(rows.shape)}",
                expected="azimuth, elevation, rotation, distance, field of view",
            )
        azimuth, elevation = torch.deg2rad(rows[..., 0]), torch.deg2rad(rows[..., 1])
        sin_a, cos_a, sin_e, cos_e = azimuth.sin(), azimuth.cos(), elevation.sin(), elevation.cos()
        z = torch.stack([cos_e * cos_a, sin_e, cos_e * sin_a], -1)
        y = torch.stack([-sin_e * cos_a, cos_e, -sin_e * sin_a], -1)
        x = torch.linalg.cross(y, z)
        return cls(torch.stack([x, y, z], -2), rows[..., 3, None] * z)

    def to_camera(self, points: Tensor) -> Tensor:  # [..., N, 3] in the world
        """The points [..., N, 3] in the frame of each camera. Differentiable in the points."""
        return _turned(points - self.origin[..., None, :], self.camera_from_world)

    def to_world(self, points: Tensor) -> Tensor:  # [..., N, 3] in the frame of each camera
        """The points [..., N, 3] in the world. Differentiable in the points."""
        return _turned(points, self.camera_from_world.transpose(-1, -2)) + self.origin[..., None, :]

    def __getitem__(self, index: int | slice | tuple[int | slice, ...]) -> Cameras:
        """Some of the cameras, by their leading dimensions."""
        return Cameras(self.camera_from_world[index], self.origin[index])


def make_rows(azimuth_deg: Tensor, elevation_deg: Tensor, distance: Tensor) -> Tensor:  # [...] each
    """Camera rows [..., 5] from the three numbers that matter."""
    azimuth, elevation, distance = torch.broadcast_tensors(azimuth_deg, elevation_deg, distance)
    nothing = torch.zeros_like(azimuth)
    return torch.stack([azimuth, elevation, nothing, distance, nothing + FIELD_OF_VIEW_DEG], -1)


def checked_rows(rows: Sequence[Sequence[float]], name: str = "cameras") -> Tensor:
    """Camera rows [V, 5] in float32 from what a user gave: three numbers each (no rotation, no field) or five."""
    if not len(rows):
        raise DataError(f"{name} has no rows", expected="one row a view: azimuth, elevation, rotation, distance, field")
    made = []
    for number, row in enumerate(rows):
        values = [float(value) for value in row]
        if len(values) == 3:
            values = [values[0], values[1], 0.0, values[2], FIELD_OF_VIEW_DEG]
        if len(values) != 5 or not all(math.isfinite(value) for value in values):
            raise DataError(
                f"row {number} of {name} is {row!r}",
                expected="azimuth, elevation, distance; or azimuth, elevation, rotation, distance, field of view",
            )
        if values[3] <= 0:
            raise DataError(f"row {number} of {name} has distance = {values[3]:g}", expected="more than 0")
        if values[2] != 0:
            raise DataError(
                f"row {number} of {name} has rotation = {values[2]:g}", expected="0: turn the picture instead"
            )
        made.append(values)
    return torch.tensor(made, dtype=torch.float32)


def project_points(points: Tensor) -> Tensor:  # [..., N, 3] in a camera's frame
    """Where the points fall in its picture [..., N, 2]: column and row in pixels, not cut off at the borders.

    Differentiable. Points behind the camera fall far outside.
    """
    x, y, z = points.unbind(-1)
    scale = FOCAL_PX / (-z).clamp(min=MIN_DEPTH)
    return torch.stack([CENTRE_PX + x * scale, CENTRE_PX - y * scale], -1)


def project_to_views(points: Tensor, cameras: Cameras) -> Tensor:  # [B, N, 3] in the frame of view 0; [B, V] cameras
    """Where the points of each object fall in its views [B, V, N, 2]: column and row in pixels. Differentiable."""
    turn, shift = _from_first(cameras)
    return project_points(_turned(points[:, None], turn) + shift)


def project_around(points: Tensor, offsets: Tensor, cameras: Cameras) -> Tensor:  # [B, N, 3], [K, 3]; [B, V] cameras
    """Where the places around each point fall in the views [B, V, N * K, 2], as :func:`project_to_views` has it.

    Points and offsets are turned apart and added then, which is far less to compute than turning their sums.
    """
    turn, shift = _from_first(cameras)
    middle = _turned(points[:, None], turn) + shift  # [B, V, N, 3]
    around = _turned(offsets, turn)  # [B, V, K, 3]
    return project_points(middle[..., None, :] + around[:, :, None]).flatten(2, 3)


def _from_first(cameras: Cameras) -> tuple[Tensor, Tensor]:  # [B, V] cameras
    """How to come from the frame of view 0 into that of each view: rotations [B, V, 3, 3], movements [B, V, 1, 3]."""
    rotation, first = cameras.camera_from_world, cameras[:, :1]
    turn = (rotation[..., :, None, :] * first.camera_from_world[..., None, :, :]).sum(-1)
    return turn, _turned((first.origin - cameras.origin)[..., None, :], rotation)


def _turned(points: Tensor, rotation: Tensor) -> Tensor:  # [..., N, 3], [..., 3, 3]
    """Each point multiplied by the rotation.

    Not as a matrix product, which autocast or TF32 would round to three digits: a tenth of a pixel.
    """
    x, y, z = points.unbind(-1)
    columns = rotation[..., None, :, :].unbind(-1)
    return x[..., None] * columns[0] + y[..., None] * columns[1] + z[..., None] * columns[2]
