"""The splats that a training begins with: the scene's points, as large as the gaps between them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hotlap.base.errors import DataError
from hotlap.data.scene import Scene, View
from hotlap.data.splats import SH_C0
from hotlap.splat.config import SplatTrainConfig
from hotlap.splat.pictures import planned_camera

MIN_POINTS = 4
"""Each point asks for the distance of its three nearest."""


def start_splats(scene: Scene, views: tuple[View, ...], config: SplatTrainConfig, extent: float) -> dict[str, Tensor]:
    """Raw parameters by name, on the CPU.

    Of more points than ``config.start_splats``, or than there may ever be splats, a part is drawn, by the seed; with a
    single picture only those that its camera sees count.
    """
    points, colors = scene.points, scene.colors
    if config.image_index is not None:
        seen = _seen(points, views[0])
        points, colors = points[seen], colors[seen]
    if len(points) < MIN_POINTS:
        where = f"the scene {str(scene.folder)!r} has {len(scene.points)} points to begin with"
        if len(points) < len(scene.points):
            where += f", of which the picture {views[0].name!r} shows {len(points)}"
        raise DataError(where, expected=f"at least {MIN_POINTS}, from structure from motion")
    if not any(_seen(points, view).any() for view in views):  # nothing would be drawn, and so nothing learned
        raise DataError(
            f"none of the {len(points)} points of the scene {str(scene.folder)!r} lies within any of its "
            f"{len(views)} pictures",
            expected="points and cameras of one reconstruction",
            remedy="Take both from the same folder; without points some are drawn at random",
        )
    most = min(config.start_splats or config.most_splats, config.most_splats)
    if len(points) > most:
        chosen = np.random.default_rng(config.seed).permutation(len(points))[:most]
        points, colors = points[np.sort(chosen)], colors[np.sort(chosen)]
    sizes = _pixels(points, views, config) if config.start_pixels else config.start_scale * _gaps(points)
    sizes = np.clip(sizes, 1e-5 * extent, extent)
    num = len(points)
    quats = torch.zeros(num, 4)
    quats[:, 0] = 1
    coefficients = torch.zeros(num, (config.sh_degree + 1) ** 2, 3)
    coefficients[:, 0] = (torch.from_numpy(colors.astype(np.float32)) / 255 - 0.5) / SH_C0
    return {
        "means": torch.from_numpy(points.astype(np.float32)),
        "quats": quats,
        "scales": torch.from_numpy(np.log(sizes).astype(np.float32))[:, None].repeat(1, 3),
        "opacities": torch.full((num,), float(np.log(config.start_opacity / (1 - config.start_opacity)))),
        "colors": coefficients,
    }


def _seen(points: np.ndarray, view: View) -> np.ndarray:  # [P, 3] -> [P] bool
    """Which points lie in front of a camera and within its picture."""
    pose, camera = view.camera_from_world, view.camera
    local = points @ pose[:3, :3].T + pose[:3, 3]
    depth = np.maximum(local[:, 2], 1e-6)
    x, y = camera.fx * local[:, 0] / depth + camera.cx, camera.fy * local[:, 1] / depth + camera.cy
    return (local[:, 2] > 0.01) & (x >= 0) & (x < camera.width) & (y >= 0) & (y < camera.height)


def _pixels(points: np.ndarray, views: tuple[View, ...], config: SplatTrainConfig) -> np.ndarray:  # [P, 3] -> [P]
    """How large some pixels of the nearest camera are where each point is."""
    from scipy.spatial import cKDTree

    distances, nearest = cKDTree(np.stack([view.position() for view in views])).query(points)
    focals = np.array([planned_camera(view, config.scale, config.max_side).fx for view in views])
    return np.asarray(config.start_pixels * distances / focals[nearest])


def _gaps(points: np.ndarray) -> np.ndarray:  # [P, 3] -> [P]
    """The root of the mean squared distance to the three nearest points."""
    from scipy.spatial import cKDTree

    distances, _ = cKDTree(points).query(points, k=MIN_POINTS, workers=-1)
    return np.sqrt((distances[:, 1:] ** 2).mean(1))
