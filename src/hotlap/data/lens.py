"""Bent pictures made straight: where each pixel of a pinhole picture lies in the picture that a lens gave.

The straight camera has the size and the axis of the bent one. Its focal lengths are those of the bent one times the
smallest factor from 0.5 to 4 with which every pixel has something to show: no black borders, and as much of the view as
that allows. At 0.5 it stops, since a wider picture would have few pixels left for its middle.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from hotlap.base.errors import DataError
from hotlap.data.pinhole import Lens, Pinhole

MIN_ZOOM, MAX_ZOOM = 0.5, 4.0
_STEPS = 48
_TURNS = 256


def bend(lens: Lens, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the lens puts what a pinhole sees at (x, y); both on the plane at distance 1."""
    r2 = x * x + y * y
    if lens.model == "fisheye":
        radius = np.sqrt(r2)
        ratio = np.divide(_spread(lens, radius), radius, out=np.ones_like(radius), where=radius > 1e-12)
        return x * ratio, y * ratio
    _, _, p1, p2, *_ = lens.params
    ratio = _radial(lens, r2)
    return (
        x * ratio + 2 * p1 * x * y + p2 * (r2 + 2 * x * x),
        y * ratio + p1 * (r2 + 2 * y * y) + 2 * p2 * x * y,
    )


def _radial(lens: Lens, r2: np.ndarray) -> np.ndarray:
    k1, k2, _, _, k3, k4, k5, k6 = lens.params
    with np.errstate(all="ignore"):  # coefficients of a damaged file may leave the range of numbers
        return (1 + r2 * (k1 + r2 * (k2 + r2 * k3))) / (1 + r2 * (k4 + r2 * (k5 + r2 * k6)))


def _spread(lens: Lens, radius: np.ndarray) -> np.ndarray:
    """The distance from the axis in a fisheye picture, in focal lengths, of what a pinhole sees at ``radius``."""
    angle = np.arctan(radius)
    a2 = angle * angle
    k1, k2, k3, k4 = lens.params
    return angle * (1 + a2 * (k1 + a2 * (k2 + a2 * (k3 + a2 * k4))))


@lru_cache(maxsize=256)
def straight_camera(lens: Lens) -> Pinhole:
    """The pinhole that the lens's pictures are turned into; see the top of this file."""
    zooms = np.geomspace(MAX_ZOOM, MIN_ZOOM, _STEPS)
    shown = 0.0
    for zoom in zooms:  # from a narrow view outwards, so that a lens that folds back cannot be mistaken for a wide one
        if not _all_shown(lens, _zoomed(lens, zoom)):
            break
        shown = zoom
    if shown == 0.0:
        raise DataError(
            f"lens {lens.model!r} with parameters {lens.params} cannot be undone: even a quarter of the view, in the "
            "middle, shows what was never photographed",
            remedy="Check the camera's parameters, or undistort the pictures with the program that estimated them",
        )
    if shown > MIN_ZOOM:
        low, high = zooms[np.flatnonzero(zooms == shown)[0] + 1], shown
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (low, middle) if _all_shown(lens, _zoomed(lens, middle)) else (middle, high)
        shown = high
    return _zoomed(lens, shown)


def _zoomed(lens: Lens, zoom: float) -> Pinhole:
    return replace(lens.camera, fx=lens.camera.fx * zoom, fy=lens.camera.fy * zoom)


def _all_shown(lens: Lens, camera: Pinhole) -> bool:
    """Whether every border pixel of a straight camera lies in the bent picture, and no circle lies inside a smaller."""
    across, down = np.arange(camera.width) + 0.5, np.arange(camera.height) + 0.5
    u = np.concatenate([across, across, np.full_like(down, 0.5), np.full_like(down, camera.width - 0.5)])
    v = np.concatenate([np.full_like(across, 0.5), np.full_like(across, camera.height - 0.5), down, down])
    x, y = (u - camera.cx) / camera.fx, (v - camera.cy) / camera.fy
    radius = np.linspace(0.0, float(np.sqrt(x * x + y * y).max()), _TURNS)
    reach = _spread(lens, radius) if lens.model == "fisheye" else radius * _radial(lens, radius * radius)
    if not (np.isfinite(reach).all() and (np.diff(reach) > 0).all()):
        return False
    u, v = _in_pixels(lens, x, y)
    return bool(((u >= 0) & (u <= camera.width) & (v >= 0) & (v <= camera.height)).all())


def _in_pixels(lens: Lens, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x, y = bend(lens, x, y)
    return x * lens.camera.fx + lens.camera.cx, y * lens.camera.fy + lens.camera.cy


@lru_cache(maxsize=4)
def sources(lens: Lens, camera: Pinhole) -> np.ndarray:  # [H, W, 2] float32
    """Where each pixel of the straight camera lies in the bent picture, in pixels; the first centre is at 0.5."""
    x = ((np.arange(camera.width) + 0.5 - camera.cx) / camera.fx)[None, :]
    y = ((np.arange(camera.height) + 0.5 - camera.cy) / camera.fy)[:, None]
    u, v = _in_pixels(lens, *np.broadcast_arrays(x, y))
    places = np.stack([u, v], -1).astype(np.float32)
    places.flags.writeable = False
    return places


def straighten(image: np.ndarray, lens: Lens, camera: Pinhole) -> np.ndarray:  # [H, W, 3] uint8 -> same
    """A bent picture as the straight camera sees it, blended from the four nearest pixels."""
    import torch
    from torch.nn.functional import grid_sample

    height, width = image.shape[:2]
    places = torch.from_numpy(sources(lens, camera) / np.array([width / 2, height / 2], np.float32) - 1)
    planes = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None].float()
    drawn = grid_sample(planes, places[None], mode="bilinear", padding_mode="border", align_corners=False)
    return drawn[0].round_().clamp_(0, 255).to(torch.uint8).permute(1, 2, 0).contiguous().numpy()


def straighten_mask(mask: np.ndarray, lens: Lens, camera: Pinhole) -> np.ndarray:  # [H, W] bool -> same
    """A bent mask as the straight camera sees it, from the nearest pixel."""
    places = np.floor(sources(lens, camera)).astype(np.int64)
    columns, rows = places[..., 0].clip(0, mask.shape[1] - 1), places[..., 1].clip(0, mask.shape[0] - 1)
    return mask[rows, columns]
