"""What colour a mesh has anywhere on its faces: materials, vertex colours, textures in halved sizes."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hotlap.base.errors import DataError
from hotlap.data.mesh_file import Material, Mesh
from hotlap.data.picture_file import require_pillow, to_rgb

MAX_SIDE = 4096
"""Textures larger than this are halved when they are read: views are far smaller."""
PLAIN = 0.8
"""The grey of faces that have no paint, so that light and shadow show."""


@dataclass(frozen=True, eq=False)
class Paint:
    """Colours of faces; textures of all materials in all sizes lie behind one another."""

    colour: Tensor  # [F, 3, 3] colours at the corners, from materials and vertices
    uv: Tensor | None  # [F, 3, 2], v upwards
    texels: Tensor  # [T, 3] in 0..1
    tables: Tensor  # [M + 1, L, 3] int64: first texel, width, height; the last row is for faces without texture
    material: Tensor  # [F] row of the tables
    texel_area: Tensor  # [F] of the full texture that the face takes

    def colours(self, face: Tensor, weights: Tensor, area_px: Tensor) -> Tensor:  # [n], [n, 3], [n] -> [n, 3]
        """The colours at points given by face and corner weights; ``area_px`` is the size of the face as it is seen.

        The texture's size is chosen for the whole face so that a texel is about as large as a sample.
        """
        colour = weighted(self.colour, face, weights)
        if self.uv is None:
            return colour
        uv = weighted(self.uv, face, weights)
        level = (
            (0.5 * torch.log2(self.texel_area.index_select(0, face) / area_px.clamp(min=1e-6)).clamp(min=0))
            .floor()
            .long()
        )
        level = level.clamp(max=self.tables.shape[1] - 1)
        entry = self.material.index_select(0, face) * self.tables.shape[1] + level
        first, width, height = self.tables.flatten(0, 1).index_select(0, entry).unbind(1)
        return colour * self._bilinear(uv, first, width, height)

    def _bilinear(self, uv: Tensor, first: Tensor, width: Tensor, height: Tensor) -> Tensor:
        x = (uv[:, 0] - uv[:, 0].floor()) * width - 0.5
        y = (1 - (uv[:, 1] - uv[:, 1].floor())) * height - 0.5
        left, top = x.floor().long(), y.floor().long()
        across, down = (x - left)[:, None], (y - top)[:, None]
        columns = (left % width, (left + 1) % width)
        rows = (top % height * width + first, (top + 1) % height * width + first)
        upper, lower = (
            torch.lerp(
                self.texels.index_select(0, line + columns[0]), self.texels.index_select(0, line + columns[1]), across
            )
            for line in rows
        )
        return torch.lerp(upper, lower, down)


def weighted(corners: Tensor, face: Tensor, weights: Tensor) -> Tensor:  # [F, 3, C], [n], [n, 3] -> [n, C]
    """The mean of what stands at the corners of each face."""
    return torch.bmm(weights[:, None], corners.index_select(0, face))[:, 0]


def make_paint(mesh: Mesh, device: torch.device) -> Paint:
    """The paint of a mesh, its textures decoded, on a device."""
    plain = np.ones if mesh.materials or mesh.colours is not None else lambda shape: np.full(shape, PLAIN)
    colour = plain((len(mesh.faces), 3, 3))
    material = np.full(len(mesh.faces), len(mesh.materials))
    if mesh.face_materials is not None:
        material = np.where(mesh.face_materials < 0, len(mesh.materials), mesh.face_materials)
        table = np.array([*(entry.colour for entry in mesh.materials), (1.0, 1.0, 1.0)])
        colour = colour * table[material][:, None]
    if mesh.colours is not None:
        colour = colour * mesh.colours[mesh.faces]
    pyramids = [_pyramid(entry) for entry in mesh.materials]
    if mesh.uvs is None or all(len(levels) == 1 for levels in pyramids):
        nothing = torch.empty(0, device=device)
        return Paint(torch.from_numpy(colour).to(device, torch.float32), None, nothing, nothing, nothing, nothing)
    no_uv = np.isnan(mesh.uvs).any(axis=(1, 2))
    material = np.where(no_uv, len(mesh.materials), material)
    uvs = np.where(no_uv[:, None, None], 0.0, mesh.uvs)
    texels, tables = _joined([*pyramids, [torch.ones(1, 1, 3)]])
    one, two = uvs[:, 1] - uvs[:, 0], uvs[:, 2] - uvs[:, 0]
    area = np.abs(one[:, 0] * two[:, 1] - one[:, 1] * two[:, 0]) / 2
    area = area * tables[material, 0, 1:].prod(1).numpy()
    return Paint(
        torch.from_numpy(colour).to(device, torch.float32),
        torch.from_numpy(uvs).to(device, torch.float32),
        texels.to(device),
        tables.to(device),
        torch.from_numpy(material).to(device),
        torch.from_numpy(area).to(device, torch.float32),
    )


def _joined(pyramids: list[list[Tensor]]) -> tuple[Tensor, Tensor]:
    """All pictures behind one another, and where each lies: the last size stands for all smaller ones."""
    most = max(len(levels) for levels in pyramids)
    tables = torch.zeros(len(pyramids), most, 3, dtype=torch.int64)
    texels, at = [], 0
    for number, levels in enumerate(pyramids):
        for level, picture in enumerate(levels):
            height, width = picture.shape[:2]
            tables[number, level:] = torch.tensor([at, width, height])
            texels.append(picture.reshape(-1, 3))
            at += height * width
    return torch.cat(texels), tables


def _pyramid(material: Material) -> list[Tensor]:  # [H, W, 3] each
    """A texture and its halves, quarters, ...; one white pixel for a material without."""
    if material.texture is None:
        return [torch.ones(1, 1, 3)]
    picture = _decode(material)
    levels = [torch.from_numpy(picture).float() / 255]
    while min(levels[-1].shape[:2]) > 1:
        smaller = torch.nn.functional.avg_pool2d(levels[-1].permute(2, 0, 1)[None], 2)
        levels.append(smaller[0].permute(1, 2, 0).contiguous())
    return levels if len(levels) > 1 else levels * 2


def _decode(material: Material) -> np.ndarray:  # [H, W, 3] uint8
    image_module = require_pillow()
    assert material.texture is not None
    try:
        image = image_module.open(io.BytesIO(material.texture))
        image.load()
    except (OSError, SyntaxError, ValueError, image_module.DecompressionBombError) as error:
        raise DataError(
            f"the texture of material {material.name!r} cannot be read: {error}", remedy="Replace it, or remove it"
        ) from error
    factor = math.ceil(max(image.size) / MAX_SIDE)
    return np.array(to_rgb(image if factor == 1 else image.reduce(factor)))
