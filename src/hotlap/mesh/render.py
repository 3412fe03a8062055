"""Pictures of textured meshes: a rasteriser with a depth buffer in plain torch, for a CPU or a card, without a display.

Each face asks for the samples in its bounding box; of those inside, the nearest wins by an atomic minimum over depth
and face number packed into one integer, so the result does not depend on the order. Paint and light are computed once
for each sample that is seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hotlap.base.errors import ConfigError
from hotlap.data.mesh_file import Mesh
from hotlap.mesh.cameras import MIN_DEPTH, SIZE_PX, Cameras, project_points
from hotlap.mesh.paint import Paint, make_paint

MAX_PAIRS = 1 << 20
"""Pairs of face and sample that are looked at in one go: the memory of about 150 bytes each, and a good speed."""
EMPTY = torch.iinfo(torch.int64).max
KEY_LIGHT = (0.35, 0.85, 0.40)
"""Where most light comes from, in the world: above, a little to one side."""
AMBIENT, KEY, HEADLIGHT = 0.42, 0.38, 0.24
"""Shares of light from everywhere, from the key light and from the camera."""


@dataclass(frozen=True, eq=False)
class Views:
    """Pictures of one object over white."""

    image: Tensor
    """[V, size, size, 3] uint8."""
    alpha: Tensor
    """[V, size, size] uint8: 255 where the object fills a pixel."""


@dataclass(frozen=True, eq=False)
class _Surface:
    """A mesh on a device."""

    corners: Tensor  # [F, 3, 3] in the world
    normals: Tensor  # [F, 3]
    paint: Paint


@dataclass(frozen=True, eq=False)
class _Projected:
    """The faces that may be seen in one view, on the grid of its samples."""

    face: Tensor  # [f] their numbers
    first: Tensor  # [f, 2] int64, column and row of the first sample in each bounding box
    count: Tensor  # [f, 2] int64, how many samples across and down
    planes: Tensor  # [f, 4, 3]: three weights and 1/depth, each as a * column + b * row + c from the first sample
    inverse_depth: Tensor  # [f, 3] at the corners
    area_px: Tensor  # [f] in samples


def render_views(
    mesh: Mesh,
    cameras: Cameras,  # [V]
    *,
    size: int = SIZE_PX,
    supersample: int = 2,
    device: torch.device | None = None,
) -> Views:
    """The mesh as each camera sees it, over white, lit from above and from the camera; faces have two sides.

    ``supersample`` squared samples are averaged in each pixel. Faces that reach behind a camera are left out.
    """
    for name, value in (("size", size), ("supersample", supersample)):
        if value < 1:
            raise ConfigError(f"{name} = {value}", expected="at least 1")
    device = device or torch.device("cpu")
    corners = torch.from_numpy(mesh.vertices[mesh.faces]).to(device, torch.float32)
    normals = torch.linalg.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    surface = _Surface(corners, torch.nn.functional.normalize(normals, dim=1, eps=1e-30), make_paint(mesh, device))
    shots = [
        _render_one(surface, cameras.camera_from_world[i], cameras.origin[i], size, supersample)
        for i in range(len(cameras.origin))
    ]
    return Views(torch.stack([shot[0] for shot in shots]), torch.stack([shot[1] for shot in shots]))


@torch.no_grad()
def _render_one(
    surface: _Surface, camera_from_world: Tensor, origin: Tensor, size: int, supersample: int
) -> tuple[Tensor, Tensor]:
    device = surface.corners.device
    camera = Cameras(camera_from_world.to(device, torch.float32), origin.to(device, torch.float32))
    side = size * supersample
    seen = _project(surface.corners, camera, side)
    keys = _nearest(seen, side)
    pixel = (keys != EMPTY).nonzero()[:, 0]
    colour = torch.ones(side * side, 3, device=device)
    colour[pixel] = _shade(surface, seen, keys[pixel] & 0xFFFFFFFF, pixel, camera, side)
    covered = torch.zeros(side * side, device=device)
    covered[pixel] = 1.0
    blocks = (size, supersample, size, supersample)
    image = colour.reshape(*blocks, 3).mean((1, 3))
    alpha = covered.reshape(blocks).mean((1, 3))
    return (image * 255).round().to(torch.uint8), (alpha * 255).round().to(torch.uint8)


def _project(corners: Tensor, camera: Cameras, side: int) -> _Projected:
    in_camera = camera.to_camera(corners.reshape(-1, 3)).reshape(corners.shape)
    depth = -in_camera[..., 2]
    at = (project_points(in_camera) + 0.5) * (side / SIZE_PX) - 0.5  # [F, 3, 2] on the grid of samples
    low, high = at.amin(1).ceil().clamp(min=0), at.amax(1).floor().clamp(max=side - 1)
    count = (high - low + 1).clamp(min=0)
    edge_1, edge_2 = at[:, 1] - at[:, 0], at[:, 2] - at[:, 0]
    double_area = edge_1[:, 0] * edge_2[:, 1] - edge_1[:, 1] * edge_2[:, 0]
    face = ((depth.amin(1) > MIN_DEPTH) & (count.prod(1) > 0) & (double_area != 0)).nonzero()[:, 0]
    at, low, double_area, inverse = at[face], low[face], double_area[face], 1 / depth[face]
    here = at - low[:, None]  # from the first sample, so that small numbers are subtracted
    after, last = here[:, [1, 2, 0]], here[:, [2, 0, 1]]
    a, b = after[..., 1] - last[..., 1], last[..., 0] - after[..., 0]
    c = after[..., 0] * last[..., 1] - after[..., 1] * last[..., 0]
    weights = torch.stack([a, b, c], 2) / double_area[:, None, None]  # [f, 3 corners, 3]
    planes = torch.cat([weights, (weights * inverse[:, :, None]).sum(1, keepdim=True)], 1)
    return _Projected(face, low.long(), count[face].long(), planes, inverse, double_area.abs() / 2)


def _nearest(seen: _Projected, side: int) -> Tensor:  # [side * side] int64
    """For each sample the nearest face: depth above, place in ``seen`` below; EMPTY where there is none."""
    keys = torch.full((side * side,), EMPTY, dtype=torch.int64, device=seen.face.device)
    pairs = seen.count.prod(1)
    ends = pairs.cumsum(0)
    begin, total = 0, int(ends[-1]) if len(ends) else 0
    while begin < total:
        end = min(begin + MAX_PAIRS, total)
        place = torch.arange(begin, end, device=ends.device)
        which = torch.searchsorted(ends, place, right=True)
        place = place - (ends[which] - pairs[which])
        across = seen.count[which, 0]
        column, row = place % across, place // across
        x, y = column.float(), row.float()
        planes = seen.planes[which]
        values = planes[..., 0] * x[:, None] + planes[..., 1] * y[:, None] + planes[..., 2]
        inside = ((values[:, :3] >= 0).all(1) & (values[:, 3] > 0)).nonzero()[:, 0]
        which = which[inside]
        column, row = column[inside] + seen.first[which, 0], row[inside] + seen.first[which, 1]
        depth = (1 / values[inside, 3]).view(torch.int32).long()  # the bits of positive floats are in their order
        keys.scatter_reduce_(0, row * side + column, (depth << 32) | which, "amin")
        begin = end
    return keys


def _shade(
    surface: _Surface, seen: _Projected, which: Tensor, pixel: Tensor, camera: Cameras, side: int
) -> Tensor:  # [n, 3]
    """The colours of samples whose face, by its place in ``seen``, is known."""
    x = (pixel % side - seen.first[which, 0]).float()
    y = (pixel // side - seen.first[which, 1]).float()
    planes = seen.planes[which, :3]
    weights = planes[..., 0] * x[:, None] + planes[..., 1] * y[:, None] + planes[..., 2]
    weights = weights * seen.inverse_depth[which]  # what is linear on the face is not linear in its picture
    weights = weights / weights.sum(1, keepdim=True)
    face = seen.face[which]
    point = (surface.corners[face] * weights[:, :, None]).sum(1)
    to_camera = torch.nn.functional.normalize(camera.origin - point, dim=1)
    normal = surface.normals[face]
    facing = (normal * to_camera).sum(1)
    normal = torch.where(facing[:, None] < 0, -normal, normal)
    key = torch.nn.functional.normalize(torch.tensor(KEY_LIGHT, device=point.device), dim=0)
    light = AMBIENT + KEY * (normal @ key).clamp(min=0) + HEADLIGHT * facing.abs()
    return (surface.paint.colours(face, weights, seen.area_px[which]) * light[:, None]).clamp(max=1.0)
