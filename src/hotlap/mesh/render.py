"""Pictures of textured meshes: a rasteriser with a depth buffer in plain torch, for a CPU or a card, without a display.

Each face asks for the samples in its bounding box; of those inside, the nearest wins by an atomic minimum over depth
and face number packed into one integer, so the result does not depend on the order. Paint and light are computed once
for each sample that is seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hotlap.base.errors import ConfigError
from hotlap.data.mesh_file import Mesh
from hotlap.mesh.cameras import MIN_DEPTH, SIZE_PX, Cameras, project_points
from hotlap.mesh.paint import Paint, make_paint, weighted

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
    first: Tensor  # [2, f] int64, column and row of the first sample in each bounding box
    count: Tensor  # [2, f] int64, how many samples across and down
    planes: Tensor  # [4, 3, f]: three weights and 1/depth, each as a * column + b * row + c from the first sample
    inverse_depth: Tensor  # [3, f] at the corners
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
    colour = _shade(surface, seen, keys.index_select(0, pixel) & 0xFFFFFFFF, pixel, camera, side)
    row = pixel // side
    target = row // supersample * size + (pixel - row * side) // supersample
    share = 1 / supersample**2
    image = torch.ones(size * size, 3, device=device).index_add_(0, target, colour - 1, alpha=share)
    alpha = torch.zeros(size * size, device=device).index_add_(0, target, torch.ones_like(colour[:, 0]), alpha=share)
    return _to_bytes(image).reshape(size, size, 3), _to_bytes(alpha).reshape(size, size)


def _to_bytes(values: Tensor) -> Tensor:
    return (values * 255).round().clamp(0, 255).to(torch.uint8)


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
    planes = planes.permute(1, 2, 0).contiguous()  # rows of numbers are gathered several times as fast as rows of faces
    return _Projected(face, low.long().T, count[face].long().T, planes, inverse.T, double_area.abs() / 2)


def _nearest(seen: _Projected, side: int) -> Tensor:  # [side * side] int64
    """For each sample the nearest face: depth above, place in ``seen`` below; EMPTY where there is none."""
    keys = torch.full((side * side,), EMPTY, dtype=torch.int64, device=seen.face.device)
    pairs = seen.count.prod(0)
    for begin, end in _shares(pairs):
        which = torch.repeat_interleave(torch.arange(begin, end, device=keys.device), pairs[begin:end])
        skipped = (pairs.cumsum(0) - pairs - pairs[:begin].sum()).index_select(0, which)
        place = torch.arange(len(which), device=keys.device) - skipped
        across = seen.count[0].index_select(0, which)
        row = place // across
        column = place - row * across
        values = [_plane_at(plane, which, column, row) for plane in seen.planes]
        lowest = torch.minimum(torch.minimum(values[0], values[1]), values[2])
        inside = ((lowest >= 0) & (values[3] > 0)).nonzero()[:, 0]
        which, column, row = (t.index_select(0, inside) for t in (which, column, row))
        index = (row + seen.first[1].index_select(0, which)) * side + column + seen.first[0].index_select(0, which)
        depth = (1 / values[3].index_select(0, inside)).view(torch.int32).long()  # bits of positive floats are in order
        keys.scatter_reduce_(0, index, (depth << 32) | which, "amin")
    return keys


def _plane_at(plane: Tensor, which: Tensor, column: Tensor, row: Tensor) -> Tensor:  # [3, f], [n], [n], [n] -> [n]
    a, b, c = (line.index_select(0, which) for line in plane)
    return torch.addcmul(torch.addcmul(c, a, column.to(a.dtype)), b, row.to(a.dtype))


def _shares(pairs: Tensor) -> Iterator[tuple[int, int]]:
    """Ranges of faces with about MAX_PAIRS pairs each."""
    part = (pairs.cumsum(0) - pairs) // MAX_PAIRS
    ends = torch.unique_consecutive(part, return_counts=True)[1].cumsum(0).tolist()
    yield from itertools.pairwise([0, *ends])


def _shade(
    surface: _Surface, seen: _Projected, which: Tensor, pixel: Tensor, camera: Cameras, side: int
) -> Tensor:  # [n, 3]
    """The colours of samples whose face, by its place in ``seen``, is known."""
    row = pixel // side
    column = pixel - row * side - seen.first[0].index_select(0, which)
    row = row - seen.first[1].index_select(0, which)
    # What is linear on the face is not linear in its picture.
    weights = torch.stack(
        [
            _plane_at(plane, which, column, row) * inverse.index_select(0, which)
            for plane, inverse in zip(seen.planes[:3], seen.inverse_depth, strict=True)
        ],
        1,
    )
    weights = weights / weights.sum(1, keepdim=True)
    face = seen.face.index_select(0, which)
    point = weighted(surface.corners, face, weights)
    to_camera = torch.nn.functional.normalize(camera.origin - point, dim=1)
    normal = surface.normals.index_select(0, face)
    facing = (normal * to_camera).sum(1)
    normal = torch.where(facing[:, None] < 0, -normal, normal)
    key = torch.nn.functional.normalize(torch.tensor(KEY_LIGHT, device=point.device), dim=0)
    light = AMBIENT + KEY * (normal @ key).clamp(min=0) + HEADLIGHT * facing.abs()
    return (surface.paint.colours(face, weights, seen.area_px.index_select(0, which)) * light[:, None]).clamp(max=1.0)
