"""Drawn objects: two ellipsoids grown into each other, their pictures from several sides, and points of their surface.

Item ``i`` is the same wherever it is drawn. Pictures and points agree, so a network can learn from them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from hotlap.data.counter_random import split_index, uniform
from hotlap.mesh.cameras import CENTRE_PX, FOCAL_PX, SIZE_PX, Cameras, make_rows

_SOLIDS = 2
_NUMBERS = 9
"""Of a solid: radii, place, turn, lean, colour."""
_LIGHT = (0.3, 0.8, 0.52)
_CANDIDATES = 4
"""Points tried for each that is wanted; those inside the other solid are left out."""


def draw_objects(
    index: Tensor, *, views: int, size: int, points: int, seed: int, device: torch.device
) -> dict[str, Tensor]:
    """A batch of the objects at ``index`` [n]: image [n, V, 3, size, size] uint8, cameras [n, V, 5], points, normals.

    Points and normals [n, P, 3] are in the frame of the first view; num_points [n] says how many count, at least half.
    """
    draws = uniform(seed, index, 8 + _SOLIDS * _NUMBERS + 2 * views).float()
    rows = _camera_rows(draws[:, -2 * views :].unflatten(1, (views, 2)), draws[:, 0])
    solids = draws[:, 8 : 8 + _SOLIDS * _NUMBERS].unflatten(1, (_SOLIDS, _NUMBERS)).to(device)
    matrix, place = _shapes(solids)
    rows = rows.to(device)
    cameras = Cameras.from_rows(rows)
    image = _pictures(matrix, place, solids[..., 6:], cameras, size)
    surface, normals = _surface(matrix, place, uniform(seed + 1, index, 2 * _CANDIDATES * points).float().to(device))
    first = cameras[:, 0]
    still = Cameras(first.camera_from_world, torch.zeros_like(first.origin))
    num_points = (points - (draws[:, 1] * (points // 2)).long()).to(device)
    return {
        "image": image,
        "cameras": rows,
        "points": first.to_camera(surface[:, :points]),
        "normals": still.to_camera(normals[:, :points]),
        "num_points": num_points,
    }


class DrawnObjects(Dataset[dict[str, Tensor]]):
    """A fixed number of objects of one split; :func:`draw_objects` says what an item holds."""

    def __init__(self, *, split: int, num_objects: int, views: int, size: int, points: int, seed: int) -> None:
        self.split, self.num_objects, self.seed = split, num_objects, seed
        self.views, self.size, self.points = views, size, points

    def __len__(self) -> int:
        return self.num_objects

    def __getitem__(self, position: int) -> dict[str, Tensor]:
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: Sequence[int]) -> list[dict[str, Tensor]]:
        """Many items at once; loaders that know this method call it."""
        for position in positions:
            if not 0 <= position < self.num_objects:
                raise IndexError(f"position {position} of {self.num_objects} objects")
        index = split_index(self.split, torch.tensor(list(positions)))
        batch = draw_objects(
            index, views=self.views, size=self.size, points=self.points, seed=self.seed, device=torch.device("cpu")
        )
        return [{name: tensor[number] for name, tensor in batch.items()} for number in range(len(positions))]


def _camera_rows(draws: Tensor, turn: Tensor) -> Tensor:  # [n, V, 2], [n] -> [n, V, 5]
    """Views from around, about as far apart as they can be, from a little above."""
    count = draws.shape[1]
    azimuth = 360 * (turn[:, None] + (torch.arange(count) + 0.3 * draws[..., 0]) / max(count, 3))
    return make_rows(azimuth % 360, 10 + 25 * draws[..., 1], torch.tensor(0.8))


def _shapes(draws: Tensor) -> tuple[Tensor, Tensor]:  # [n, S, 9]
    """For each solid a matrix [n, S, 3, 3] that makes it a unit sphere, and its centre [n, S, 3]."""
    radii = 0.07 + 0.13 * draws[..., :3]
    place = 0.16 * (draws[..., 3:6] - 0.5)
    turn, lean = 6.2832 * draws[..., 6], 1.5 * (draws[..., 7] - 0.5)
    zero, one = torch.zeros_like(turn), torch.ones_like(turn)
    around = torch.stack([turn.cos(), zero, turn.sin(), zero, one, zero, -turn.sin(), zero, turn.cos()], -1)
    over = torch.stack([one, zero, zero, zero, lean.cos(), -lean.sin(), zero, lean.sin(), lean.cos()], -1)
    axes = (over.unflatten(-1, (3, 3))[..., None] * around.unflatten(-1, (3, 3))[..., None, :, :]).sum(-2)
    return axes / radii[..., None], place


def _apply(matrix: Tensor, vectors: Tensor) -> Tensor:  # [..., 3, 3], [..., 3]
    return (matrix * vectors[..., None, :]).sum(-1)


def _pictures(matrix: Tensor, place: Tensor, colours: Tensor, cameras: Cameras, size: int) -> Tensor:
    """[n, V, 3, size, size] uint8: the nearer solid at each pixel, lit from above, on white."""
    steps = (torch.arange(size, device=matrix.device) * (SIZE_PX / size) - CENTRE_PX) / FOCAL_PX
    rows, columns = torch.meshgrid(-steps, steps, indexing="ij")
    rays = torch.stack([columns, rows, -torch.ones_like(rows)], -1).flatten(0, 1)  # [P, 3] in the camera's frame
    still = Cameras(cameras.camera_from_world, torch.zeros_like(cameras.origin))
    rays = still.to_world(rays)  # [n, V, P, 3]
    light = torch.nn.functional.normalize(matrix.new_tensor(_LIGHT), dim=0)
    picture = torch.ones_like(rays)
    nearest = torch.full(rays.shape[:3], torch.inf, device=rays.device)
    for solid in range(_SOLIDS):
        shape = matrix[:, solid, None, None]
        start = _apply(shape, (cameras.origin - place[:, solid, None])[:, :, None])
        along = _apply(shape, rays)
        a, b = along.square().sum(-1), (along * start).sum(-1)
        inside = b * b - a * (start.square().sum(-1) - 1)
        depth = (-b - inside.clamp(min=0).sqrt()) / a
        hit = (inside > 0) & (depth < nearest)
        normal = _apply(shape.transpose(-1, -2), start + depth[..., None] * along)
        shade = 0.25 + 0.75 * (torch.nn.functional.normalize(normal, dim=-1) * light).sum(-1).clamp(min=0)
        colour = (0.3 + 0.6 * colours[:, solid])[:, None, None] * shade[..., None]
        picture = torch.where(hit[..., None], colour, picture)
        nearest = torch.where(hit, depth, nearest)
    views = picture.clamp(0, 1).mul(255).to(torch.uint8).unflatten(2, (size, size))
    return views.permute(0, 1, 4, 2, 3).contiguous()


def _surface(matrix: Tensor, place: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:  # [n, 2 * C]
    """Points and normals [n, C, 3] of the surface in the world; those inside the other solid come last."""
    height, turn = 2 * draws[:, ::2] - 1, 6.2832 * draws[:, 1::2]
    radius = (1 - height.square()).clamp(min=0).sqrt()
    unit = torch.stack([radius * turn.cos(), height, radius * turn.sin()], -1)
    which = torch.arange(unit.shape[1], device=unit.device) % _SOLIDS
    shape, centre = matrix[:, which], place[:, which]
    points = _apply(torch.linalg.inv(matrix)[:, which], unit) + centre
    normals = torch.nn.functional.normalize(_apply(shape.transpose(-1, -2), unit), dim=-1)
    other = (which + 1) % _SOLIDS
    hidden = _apply(matrix[:, other], points - place[:, other]).square().sum(-1) < 1
    order = hidden.int().argsort(dim=1, stable=True)[..., None].expand(-1, -1, 3)
    return points.gather(1, order), normals.gather(1, order)
