"""Small meshes with known shapes."""

from __future__ import annotations

import io

import numpy as np
import pytest

from hotlap.data.mesh_file import Material, Mesh


def sphere(radius: float = 0.2, rings: int = 24, centre=(0.0, 0.0, 0.0)) -> Mesh:
    """A sphere of rings and sectors whose vertices lie on the true one."""
    up = np.linspace(0, np.pi, rings + 1)[:, None]
    around = np.linspace(0, 2 * np.pi, 2 * rings, endpoint=False)[None]
    points = np.stack([np.sin(up) * np.cos(around), np.cos(up) + 0 * around, np.sin(up) * np.sin(around)], -1)
    index = np.arange((rings + 1) * 2 * rings).reshape(rings + 1, 2 * rings)
    beside = np.roll(index, -1, axis=1)
    quads = [index[:-1], beside[:-1], beside[1:], index[1:]]
    faces = np.concatenate([np.stack([quads[0], quads[i], quads[i + 1]], -1).reshape(-1, 3) for i in (1, 2)])
    points = points.reshape(-1, 3) * radius + np.array(centre)
    return Mesh(vertices=points, faces=faces)


def quad(corners, *, colour=(1.0, 1.0, 1.0), texture: bytes | None = None) -> Mesh:
    """Two triangles over four corners, lower left, lower right, upper right, upper left, with the whole texture."""
    uv = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], np.float64)
    faces = np.array([[0, 1, 2], [0, 2, 3]])
    return Mesh(
        vertices=np.array(corners, np.float64),
        faces=faces,
        uvs=uv[faces],
        materials=(Material(name="m", colour=colour, texture=texture),),
        face_materials=np.zeros(2, np.int64),
    )


def box(size=(0.3, 0.2, 0.1)) -> Mesh:
    """A closed box around the origin, its faces turned outwards."""
    corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]) * np.array(size) / 2
    sides = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    faces = np.array([face for a, b, c, d in sides for face in ((a, b, c), (a, c, d))])
    return Mesh(vertices=corners, faces=faces)


def png(pixels) -> bytes:  # [H, W, 3]
    """A PNG file's content."""
    image = pytest.importorskip("PIL.Image", reason="Pillow makes the pictures")
    out = io.BytesIO()
    image.fromarray(np.array(pixels, np.uint8)).save(out, "PNG")
    return out.getvalue()
