"""The cameras of a training as tables on the device, the scene's extent, and paths of cameras to look from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hotlap.data.scene import Pinhole, View

EXTENT_MARGIN = 1.1
"""The extent is this times the largest distance of a camera from their middle, as the method's authors have it."""

ORBIT_ANGLE, FEW = 0.3, 0.05
"""An orbit goes by the views within some such angle, in radians; on a side with none, by the median of all."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Cameras:
    """Cameras packed by number."""

    viewmats: Tensor
    """[V, 4, 4] float32 camera from world; changed in place where poses are refined."""
    Ks: Tensor
    """[V, 3, 3] float32."""
    sizes: tuple[tuple[int, int], ...]
    """Height and width of each."""
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, kw_only=True, eq=False)
class Shot:
    """One camera to draw from."""

    name: str
    pose: np.ndarray
    """[4, 4] camera from world."""
    camera: Pinhole

    def place(self) -> np.ndarray:  # [3]
        """Where it stands, in the world."""
        return np.asarray(-self.pose[:3, :3].T @ self.pose[:3, 3])

    def fov(self) -> float:
        """What it sees from top to bottom, in radians."""
        return 2 * math.atan(self.camera.height / 2 / self.camera.fy)


def pack_cameras(views: Sequence[View], pinholes: Sequence[Pinhole], device: torch.device) -> Cameras:
    """The cameras of some views, whose pictures were loaded with these pinholes."""
    poses = np.stack([view.camera_from_world for view in views]).astype(np.float32)
    matrices = np.stack([pinhole.matrix() for pinhole in pinholes]).astype(np.float32)
    return Cameras(
        viewmats=torch.from_numpy(poses).to(device),
        Ks=torch.from_numpy(matrices).to(device),
        sizes=tuple((pinhole.height, pinhole.width) for pinhole in pinholes),
        names=tuple(view.name for view in views),
    )


def scene_extent(views: Sequence[View], points: np.ndarray) -> float:  # [P, 3]
    """How large the scene is, in its units: the cameras' distance from their middle; of one camera, the points'."""
    places = np.stack([view.position() for view in views])
    radius = float(np.linalg.norm(places - places.mean(0), axis=1).max())
    if radius * 1e6 <= np.abs(places).max() or radius == 0:
        away = np.linalg.norm(points - places.mean(0), axis=1) if len(points) else np.ones(1)
        radius = float(np.median(away))
    return EXTENT_MARGIN * radius


def orbit(views: Sequence[View], points: np.ndarray, frames: int) -> np.ndarray:  # [P, 3] -> [F, 4, 4] float64
    """Poses around what the views look at, looking inwards, as high and as far away as the views of that side are."""
    places = np.stack([view.position() for view in views])
    looks = np.stack([view.camera_from_world[2, :3] for view in views])
    up = -np.mean([view.camera_from_world[1, :3] for view in views], axis=0)
    up /= np.linalg.norm(up) or 1.0
    middle = meeting_point(places, looks, points)
    away = places - middle
    heights = away @ up
    flat = away - np.outer(heights, up)
    radii = np.linalg.norm(flat, axis=1)
    first = flat[0] / (radii[0] or 1.0)
    side = np.cross(up, first)
    angles = np.arctan2(flat @ side, flat @ first)
    usual = np.array([np.median(radii) or 1.0, np.median(heights)])
    poses = []
    for angle in np.linspace(0, 2 * np.pi, frames, endpoint=False):
        near = np.exp((np.cos(angles - angle) - 1) / ORBIT_ANGLE**2)
        radius, height = (near @ np.stack([radii, heights], 1) + FEW * usual) / (near.sum() + FEW)
        place = middle + radius * (np.cos(angle) * first + np.sin(angle) * side) + height * up
        poses.append(look_at(place, middle, up))
    return np.stack(poses)


def meeting_point(places: np.ndarray, looks: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The point nearest to all lines of sight; where these are parallel, the middle of the points."""
    projectors = np.eye(3) - looks[:, :, None] * looks[:, None, :]
    total = projectors.sum(0)
    if np.linalg.cond(total) > 1e6:
        return np.median(points, axis=0) if len(points) else places.mean(0) + looks.mean(0)
    return np.asarray(np.linalg.solve(total, (projectors @ places[:, :, None]).sum(0)[:, 0]))


def look_at(place: np.ndarray, target: np.ndarray, up: np.ndarray) -> np.ndarray:  # [3] each -> [4, 4]
    """Camera from world of a camera at a place that looks at a target, its y down."""
    forward = target - place
    forward = forward / (np.linalg.norm(forward) or 1.0)
    right = np.cross(forward, up)
    right = right / (np.linalg.norm(right) or 1.0)
    rotation = np.stack([right, np.cross(forward, right), forward])
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = rotation, -rotation @ place
    return pose
