"""Surface points: spread by area, on the surface, with the faces' normals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from solids import box, sphere

from hotlap.data.mesh_file import Mesh
from hotlap.mesh.surface import sample_surface


def test_points_lie_on_the_box_and_normals_point_outwards():
    points, normals = sample_surface(box((2, 4, 6)), 5000, torch.Generator().manual_seed(0))
    side = (points.abs() / torch.tensor([1.0, 2.0, 3.0])).max(1)
    torch.testing.assert_close(side.values, torch.ones(5000), atol=1e-5, rtol=0)
    rows = torch.arange(5000)
    assert (normals[rows, side.indices] * points[rows, side.indices].sign() > 0.999).all()
    # Opposite sides together have the areas 2 * 24, 2 * 12 and 2 * 8 of 88.
    shares = torch.bincount(side.indices, minlength=3) / 5000
    assert shares.tolist() == pytest.approx([24 / 44, 12 / 44, 8 / 44], abs=0.002)


def test_points_are_even_inside_a_face():
    triangle = Mesh(vertices=np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0]], float), faces=np.array([[0, 1, 2]]))
    points, _ = sample_surface(triangle, 20000, torch.Generator().manual_seed(1))
    assert (points[:, :2] >= 0).all() and (points[:, :2].sum(1) <= 1 + 1e-6).all()
    # The small triangle of half the side has a quarter of the area; 20,000 draws stray by 0.3% (one sigma).
    corner = (points[:, :2].sum(1) < 0.5).double().mean().item()
    assert corner == pytest.approx(0.25, abs=0.012)


def test_faces_without_area_get_no_points():
    vertices = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [9, 9, 9]], float)
    mesh = Mesh(vertices=vertices, faces=np.array([[3, 3, 3], [0, 1, 2], [3, 3, 0]]))
    points, normals = sample_surface(mesh, 64, torch.Generator().manual_seed(0))
    assert points.max() <= 1 and torch.isfinite(normals).all()
    torch.testing.assert_close(normals.abs()[:, 2], torch.ones(64))


def test_the_generator_alone_decides():
    first, again, other = (sample_surface(sphere(), 10, torch.Generator().manual_seed(s))[0] for s in (3, 3, 4))
    assert torch.equal(first, again) and not torch.equal(first, other)
