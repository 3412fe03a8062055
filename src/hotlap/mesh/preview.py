"""Pictures that show how good a predicted mesh is: turned on a table, and beside what it was predicted from."""

from __future__ import annotations

import torch
from torch import Tensor

from hotlap.data.mesh_file import Mesh, normalised
from hotlap.mesh.cameras import SIZE_PX, Cameras, make_rows, project_points
from hotlap.mesh.prepare import DIAGONAL
from hotlap.mesh.render import AMBIENT, HEADLIGHT, KEY, KEY_LIGHT, render_views

TURNTABLE_ELEVATION = 20.0
TURNTABLE_DISTANCE = 0.75
MANY_POINTS = 6000
"""From so many on, squares of three pixels make a closed surface; fewer points are drawn as squares of five."""


def as_mesh(vertices: Tensor, faces: Tensor) -> Mesh:  # [V, 3], [F, 3]
    """Tensors of a network as a mesh that can be written and rendered."""
    return Mesh(vertices=vertices.detach().double().cpu().numpy(), faces=faces.cpu().numpy())


def turntable(mesh: Mesh, num: int = 24, *, size: int = SIZE_PX) -> Tensor:  # [num, size, size, 3] uint8
    """The mesh, centred, as it turns once around: ``num`` pictures."""
    azimuth = torch.arange(num) * (360.0 / num)
    rows = make_rows(azimuth, torch.tensor(TURNTABLE_ELEVATION), torch.tensor(TURNTABLE_DISTANCE))
    return render_views(normalised(mesh, DIAGONAL), Cameras.from_rows(rows), size=size).image


def strip(pictures: Tensor, num: int = 8) -> Tensor:  # [n, H, W, 3] -> [H, num * W, 3]
    """Some of the pictures, spread evenly, in one row."""
    chosen = [number * len(pictures) // num for number in range(num)]
    return torch.cat(list(pictures[chosen]), 1)


def grid(rows: list[list[Tensor]]) -> Tensor:  # rows of [H, W, 3] uint8
    """Pictures of one size in rows and columns, short rows filled up with white."""
    most = max(len(row) for row in rows)
    blank = torch.full_like(rows[0][0], 255)
    return torch.cat([torch.cat([*row, *[blank] * (most - len(row))], 1) for row in rows], 0)


def draw_points(points: Tensor, normals: Tensor, camera: Cameras) -> Tensor:  # [N, 3] in the world -> [S, S, 3] uint8
    """A cloud of points as a camera sees it, lit as rendered meshes are; nearer points hide those behind."""
    in_camera = camera.to_camera(points)
    at = project_points(in_camera).round().long()
    to_camera = torch.nn.functional.normalize(camera.origin - points, dim=1)
    facing = (normals * to_camera).sum(1)
    key = torch.nn.functional.normalize(torch.tensor(KEY_LIGHT), dim=0)
    lit = torch.where(facing[:, None] < 0, -normals, normals) @ key
    light = 0.8 * (AMBIENT + KEY * lit.clamp(min=0) + HEADLIGHT * facing.abs())
    depth = (-in_camera[:, 2]).contiguous().view(torch.int32).long()  # the bits of positive floats are in their order
    reach = torch.arange(-1, 2) if len(points) >= MANY_POINTS else torch.arange(-2, 3)
    offsets = torch.cartesian_prod(reach, reach)
    places = at[:, None] + offsets  # [N, 9 or 25, 2]
    inside = ((places >= 0) & (places < SIZE_PX)).all(-1) & (in_camera[:, 2] < 0)[:, None]
    index = (places[..., 1] * SIZE_PX + places[..., 0])[inside]
    numbers = torch.arange(len(points))[:, None].expand(-1, len(offsets))
    keys = ((depth[:, None] << 32) | numbers)[inside]
    nothing = torch.iinfo(torch.int64).max
    nearest = torch.full((SIZE_PX**2,), nothing).scatter_reduce(0, index, keys, "amin")
    picture = torch.ones(SIZE_PX**2)
    seen = nearest != nothing
    picture[seen] = light[nearest[seen] & 0xFFFFFFFF].clamp(max=1.0)
    grey = (picture * 255).round().to(torch.uint8).reshape(SIZE_PX, SIZE_PX, 1)
    return grey.expand(-1, -1, 3).contiguous()
