"""A seeded scene to train on without any download: coloured balls over a chequered floor, photographed from a ring.

Every picture is ray-cast, so cameras, points and pixels agree exactly. It is written as a COLMAP folder, and read like
any other scene. Light comes from one side and shines on the balls, so that colours depend a little on the viewer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hotlap.base.errors import ConfigError
from hotlap.data.colmap import write_colmap
from hotlap.data.lens import bend
from hotlap.data.picture_file import require_pillow
from hotlap.data.pinhole import Lens, Pinhole
from hotlap.data.view import View

_RAYS = 2
"""Rays per pixel and axis: edges are mixed from four."""
_LIGHT = np.array([0.5, -0.8, -0.33])
_SKY_LOW, _SKY_HIGH = np.array([0.75, 0.82, 0.9]), np.array([0.35, 0.5, 0.75])
_FLOOR = 0.6
"""Where the floor is; y points down."""
_FLOOR_REACH = 2.5
_TILE = 0.5


@dataclass(frozen=True, kw_only=True)
class DrawnScene:
    """What is drawn, and how often it is photographed."""

    num_views: int = 16
    """Photographs, on a ring with varying height."""
    width: int = 96
    """Pixels of a row."""
    height: int = 64
    """Rows."""
    num_balls: int = 6
    """Balls on the floor."""
    num_points: int = 2000
    """Points on the surfaces, for points3D."""
    seed: int = 0
    """Of the balls, their colours and the points."""

    def __post_init__(self) -> None:
        for name in ("num_views", "width", "height", "num_points"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)} draws nothing", expected="at least 1")
        if self.num_balls < 0:
            raise ConfigError(f"num_balls = {self.num_balls} is no count", expected="at least 0")


@dataclass(frozen=True, eq=False)
class _Balls:
    centres: np.ndarray  # [B, 3]
    radii: np.ndarray  # [B]
    colors: np.ndarray  # [B, 3]


def write_drawn_scene(folder: Path | str, drawn: DrawnScene | None = None, *, text: bool = False) -> None:
    """A scene in COLMAP's layout: ``images/view_000.png`` and so on, and ``sparse/0/``."""
    folder, drawn = Path(folder), drawn or DrawnScene()
    image_module = require_pillow()
    (folder / "images").mkdir(parents=True, exist_ok=True)
    balls, camera = _place_balls(drawn), drawn_camera(drawn)
    views = []
    for number in range(drawn.num_views):
        pose = _pose(drawn, number)
        path = folder / "images" / f"view_{number:03d}.png"
        image_module.fromarray(_photograph(balls, camera, pose)).save(path)
        views.append(View(name=path.name, image=path, camera_from_world=pose, camera=camera))
    write_colmap(folder, views, *_surface_points(drawn, balls), text=text)


def drawn_camera(drawn: DrawnScene) -> Pinhole:
    """The camera of every photograph: some 60 degrees across."""
    focal = 0.85 * drawn.width
    return Pinhole(
        width=drawn.width, height=drawn.height, fx=focal, fy=focal, cx=drawn.width / 2, cy=drawn.height / 2
    )  # fmt: skip


def photograph(
    drawn: DrawnScene, camera: Pinhole, camera_from_world: np.ndarray, lens: Lens | None = None
) -> np.ndarray:
    """[H, W, 3] uint8: what a camera sees of the scene from anywhere, through a lens if one is given."""
    return _photograph(_place_balls(drawn), camera, camera_from_world, lens)


def _place_balls(drawn: DrawnScene) -> _Balls:
    draw = np.random.default_rng(drawn.seed)
    radii = draw.uniform(0.18, 0.4, drawn.num_balls)
    angles = (
        2 * np.pi * (np.arange(drawn.num_balls) + draw.uniform(-0.2, 0.2, drawn.num_balls)) / max(drawn.num_balls, 1)
    )
    out = draw.uniform(0.45, 1.1, drawn.num_balls)
    centres = np.stack([out * np.cos(angles), _FLOOR - radii, out * np.sin(angles)], 1)
    return _Balls(centres, radii, draw.uniform(0.15, 0.95, (drawn.num_balls, 3)))


def _pose(drawn: DrawnScene, number: int) -> np.ndarray:  # [4, 4] camera from world
    """One of the ring's cameras, looking at the middle; heights go up and down so that no two rows are alike."""
    angle = 2 * math.pi * number / drawn.num_views
    place = np.array([3.0 * math.cos(angle), -1.0 - 0.5 * math.sin(3 * angle), 3.0 * math.sin(angle)])
    forward = np.array([0.0, 0.25, 0.0]) - place
    forward /= np.linalg.norm(forward)
    right = np.cross(np.array([0.0, 1.0, 0.0]), forward)  # y points down, so down x forward is right
    right /= np.linalg.norm(right)
    pose = np.eye(4)
    pose[:3, :3] = np.stack([right, np.cross(forward, right), forward])
    pose[:3, 3] = -pose[:3, :3] @ place
    return pose


def _photograph(balls: _Balls, camera: Pinhole, pose: np.ndarray, lens: Lens | None = None) -> np.ndarray:
    steps = (np.arange(_RAYS) + 0.5) / _RAYS
    u = (np.arange(camera.width)[:, None] + steps).reshape(-1)
    v = (np.arange(camera.height)[:, None] + steps).reshape(-1)
    x, y = np.meshgrid((u - camera.cx) / camera.fx, (v - camera.cy) / camera.fy)
    if lens is not None:
        x, y = _unbend(lens, x, y)
    rays = np.stack([x, y, np.ones_like(x)], -1).reshape(-1, 3) @ pose[:3, :3]
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    colors = _shade(balls, -pose[:3, :3].T @ pose[:3, 3], rays)
    mixed = colors.reshape(camera.height, _RAYS, camera.width, _RAYS, 3).mean((1, 3))
    return (mixed.clip(0, 1) * 255).round().astype(np.uint8)


def _unbend(lens: Lens, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What a pinhole would see where a lens sees (x, y), by repeated correction."""
    straight_x, straight_y = x, y
    for _ in range(25):
        bent_x, bent_y = bend(lens, straight_x, straight_y)
        straight_x, straight_y = straight_x + x - bent_x, straight_y + y - bent_y
    return straight_x, straight_y


def _shade(balls: _Balls, place: np.ndarray, rays: np.ndarray) -> np.ndarray:  # [R, 3] -> [R, 3] in 0..1
    """The colour that comes back along each ray from a place."""
    up = (-rays[:, 1:2]).clip(0, 1)
    colors = _SKY_LOW * (1 - up) + _SKY_HIGH * up
    light = _LIGHT / np.linalg.norm(_LIGHT)
    with np.errstate(divide="ignore"):
        depth = (_FLOOR - place[1]) / rays[:, 1]
    hit = place + depth[:, None].clip(0, 1e6) * rays
    floor = (depth > 0) & (np.hypot(hit[:, 0], hit[:, 2]) < _FLOOR_REACH)
    colors[floor] = _floor_color(hit[floor])
    nearest = np.where(floor, depth, np.inf)
    for centre, radius, color in zip(balls.centres, balls.radii, balls.colors, strict=True):
        along = rays @ (centre - place)
        gap = ((centre - place) ** 2).sum() - along**2
        reach = radius**2 - gap
        near = along - np.sqrt(reach.clip(0))
        seen = (reach > 0) & (near > 0) & (near < nearest)
        normal = (place + near[seen, None] * rays[seen] - centre) / radius
        bright = 0.35 + 0.65 * (normal @ light).clip(0)
        mirrored = rays[seen] - 2 * (rays[seen] * normal).sum(1, keepdims=True) * normal
        shine = 0.5 * (mirrored @ light).clip(0) ** 8
        colors[seen] = bright[:, None] * color + shine[:, None]
        nearest = np.where(seen, near, nearest)
    return colors


def _floor_color(hit: np.ndarray) -> np.ndarray:  # [F, 3] -> [F, 3]
    odd = (np.floor(hit[:, 0] / _TILE) + np.floor(hit[:, 2] / _TILE)) % 2 == 1
    return np.where(odd[:, None], np.array([0.32, 0.3, 0.28]), np.array([0.85, 0.82, 0.76]))


def _surface_points(drawn: DrawnScene, balls: _Balls) -> tuple[np.ndarray, np.ndarray]:
    """Points [P, 3] on floor and balls with their colours [P, 3] uint8."""
    draw = np.random.default_rng(drawn.seed + 1)
    which = draw.integers(-2, max(drawn.num_balls, 0), drawn.num_points)  # two shares for the floor
    radius, angle = _FLOOR_REACH * np.sqrt(draw.random(drawn.num_points)), 2 * np.pi * draw.random(drawn.num_points)
    points = np.stack([radius * np.cos(angle), np.full_like(radius, _FLOOR), radius * np.sin(angle)], 1)
    colors = _floor_color(points)
    on_ball = which >= 0
    normal = draw.normal(size=(drawn.num_points, 3))
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    chosen = which[on_ball]
    points[on_ball] = balls.centres[chosen] + balls.radii[chosen, None] * normal[on_ball]
    light = _LIGHT / np.linalg.norm(_LIGHT)
    colors[on_ball] = (0.35 + 0.65 * (normal[on_ball] @ light).clip(0))[:, None] * balls.colors[chosen]
    return points, (colors * 255).round().astype(np.uint8)
