"""Points spread evenly over a mesh's surface, with the direction that the surface faces there."""

from __future__ import annotations

import torch
from torch import Tensor

from hotlap.data.mesh_file import Mesh, face_areas, face_normals


def sample_surface(mesh: Mesh, num: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:  # [num, 3] each
    """``num`` points and unit normals in float32; each face gets its share by area, none where it has no area.

    The shares are stratified: a face of one hundredth of the area gets num / 100 points, give or take one.
    """
    areas = torch.from_numpy(face_areas(mesh))
    ends = areas.cumsum(0) / areas.sum()
    places = (torch.arange(num, dtype=torch.float64) + torch.rand(num, dtype=torch.float64, generator=generator)) / num
    face = torch.searchsorted(ends, places, right=True).clamp(max=len(areas) - 1)
    # Rounding may leave the last place beyond the last end; the last face may have no area.
    face = torch.where(areas[face] > 0, face, areas.argmax())
    corners = torch.from_numpy(mesh.vertices[mesh.faces])[face]  # [num, 3, 3]
    u, v = torch.rand(2, num, dtype=torch.float64, generator=generator)
    root = u.sqrt()
    weights = torch.stack([1 - root, root * (1 - v), root * v], 1)
    points = (corners * weights[:, :, None]).sum(1)
    normals = torch.nn.functional.normalize(torch.from_numpy(face_normals(mesh))[face], dim=1, eps=1e-300)
    return points.float(), normals.float()
