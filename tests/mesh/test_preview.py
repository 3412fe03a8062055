"""Previews: what is drawn of points agrees with what is rendered of their mesh."""

from __future__ import annotations

import torch
from solids import box, sphere

from hotlap.mesh.cameras import Cameras, make_rows
from hotlap.mesh.preview import as_mesh, draw_points, grid, strip, turntable
from hotlap.mesh.render import render_views
from hotlap.mesh.surface import sample_surface


def test_drawn_points_look_like_the_rendered_mesh():
    cameras = Cameras.from_rows(make_rows(torch.tensor([50.0]), torch.tensor([30.0]), torch.tensor([0.8])))
    mesh = box((0.3, 0.25, 0.2))
    points, normals = sample_surface(mesh, 20_000, torch.Generator().manual_seed(0))
    drawn = draw_points(points, normals, cameras[0]).float()
    rendered = render_views(mesh, cameras).image[0].float()
    # A point is a square of three pixels, so borders and edges between sides move by one.
    assert ((drawn - rendered).abs().amax(-1) < 10).float().mean() > 0.97
    assert drawn.min() < 150, "something was drawn"


def test_points_outside_the_picture_or_behind_are_not_drawn():
    camera = Cameras.from_rows(make_rows(torch.tensor([0.0]), torch.tensor([0.0]), torch.tensor([0.8])))[0]
    far = torch.tensor([[0.0, 5.0, 0.0], [2.0, 0.0, 0.0]])
    assert (draw_points(far, far / far.norm(dim=1, keepdim=True), camera) == 255).all()


def test_a_turntable_turns_once_and_fits():
    wide = sphere(rings=8, centre=(5.0, 5.0, 5.0))
    wide.vertices[:, 0] *= 3
    pictures = turntable(wide, 6)
    assert pictures.shape == (6, 224, 224, 3)
    widths = [(picture.float().mean(2) < 250).any(0).sum().item() for picture in pictures]
    assert max(widths) > 1.5 * min(widths), "seen from the end and from the side"
    border = torch.ones(224, 224, dtype=torch.bool)
    border[1:-1, 1:-1] = False
    assert (pictures[:, border] == 255).all()
    assert strip(pictures, 3).shape == (224, 3 * 224, 3)


def test_a_grid_fills_short_rows_with_white():
    black = torch.zeros(2, 2, 3, dtype=torch.uint8)
    made = grid([[black, black], [black]])
    assert made.shape == (4, 4, 3) and made[2:, :2].max() == 0 and made[2:, 2:].min() == 255


def test_tensors_become_a_mesh():
    mesh = as_mesh(torch.rand(4, 3, requires_grad=True), torch.tensor([[0, 1, 2]]))
    assert mesh.vertices.shape == (4, 3) and mesh.faces.tolist() == [[0, 1, 2]]
