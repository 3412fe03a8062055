"""What a browser's window shows of a model: colours, depths or coverage from a free camera, as bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hotlap.data.colmap import rotation_of
from hotlap.data.scene import Pinhole
from hotlap.kernels.splat.frame import Splats, View
from hotlap.kernels.splat.op import splat
from hotlap.splat.album import as_bytes
from hotlap.splat.config import LEARNABLE
from hotlap.splat.judge import Model

MODES = ("colour", "depth", "alpha")
NEAR_SHARE, FAR_SHARE = 0.02, 0.98
"""Depths below and above these shares of all have the first and the last colour, so that a stray splat does not make
the rest look alike."""
LEAST_ALPHA = 1e-3
"""Pixels that splats cover less of have no depth."""
RAMP = ((1.0, 0.95, 0.6), (0.95, 0.5, 0.2), (0.65, 0.15, 0.4), (0.25, 0.1, 0.45), (0.03, 0.03, 0.15))
"""Colours of depths, from near to far."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """How a frame is shown."""

    mode: str = "colour"
    """One of ``MODES``."""
    degree: int | None = None
    """Highest degree of the harmonics; None for all that are in use."""
    near: float = 0.01
    """Splats with a smaller depth are left out."""
    far: float = 1e10
    """Splats with a greater depth are left out."""
    background: tuple[float, float, float] | None = None
    """Behind all splats, in 0 to 1; None for the model's own."""


def free_camera(width: int, height: int, fov: float) -> Pinhole:
    """A camera with square pixels that sees ``fov`` radians from top to bottom."""
    focal = height / 2 / math.tan(fov / 2)
    return Pinhole(width=width, height=height, fx=focal, fy=focal, cx=width / 2, cy=height / 2)


def pose_from(wxyz: np.ndarray, place: np.ndarray) -> np.ndarray:  # [4], [3] -> [4, 4] camera from world
    """The pose of a camera that is turned (world from camera) and placed like this."""
    turn = rotation_of(np.asarray(wxyz, dtype=float) / np.linalg.norm(wxyz))
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = turn.T, -turn.T @ np.asarray(place, dtype=float)
    return pose


@torch.no_grad()
def draw_look(model: Model, pose: np.ndarray, camera: Pinhole, look: Look) -> np.ndarray:  # [4, 4] -> [H, W, 3] uint8
    """The frame that a window shows."""
    device = model.params["means"].device
    if look.background is not None:
        model = replace(model, background=torch.tensor([look.background], device=device))
    if look.degree is not None:
        model = replace(model, sh_degree=min(model.degree, look.degree))
    splats = Splats(
        **{name: model.params[name] for name in LEARNABLE},
        viewmats=torch.from_numpy(pose.astype(np.float32)).to(device)[None],
        Ks=torch.from_numpy(camera.matrix().astype(np.float32)).to(device)[None],
        backgrounds=model.background,
    )
    view = View(
        height=camera.height, width=camera.width, near=look.near, far=look.far, sh_degree=model.degree, raw=True,
        antialiased=model.antialiased, depth=look.mode == "depth",
    )  # fmt: skip
    drawn = splat(splats, view)
    if look.mode == "alpha":
        return as_bytes(drawn.alphas[0].expand(-1, -1, 3))
    if look.mode == "depth":
        return as_bytes(depth_colors(drawn.colors[0, ..., -1], drawn.alphas[0, ..., 0]))
    return as_bytes(drawn.colors[0])


def depth_colors(blended: Tensor, alphas: Tensor) -> Tensor:  # [H, W] twice -> [H, W, 3]
    """The expected depth of each pixel as a colour from near to far; black where there is nothing."""
    there = alphas > LEAST_ALPHA
    colors = torch.zeros(*blended.shape, 3, device=blended.device)
    if not bool(there.any()):
        return colors
    depths = blended[there] / alphas[there]
    ordered = depths.sort().values
    low, high = (ordered[round((len(ordered) - 1) * share)] for share in (NEAR_SHARE, FAR_SHARE))
    place = ((depths - low) / (high - low).clamp(min=1e-12)).clamp(0, 1) * (len(RAMP) - 1)
    ramp = torch.tensor(RAMP, device=blended.device)
    first = place.long().clamp(max=len(RAMP) - 2)
    share = (place - first)[:, None]
    colors[there] = ramp[first] * (1 - share) + ramp[first + 1] * share
    return colors
