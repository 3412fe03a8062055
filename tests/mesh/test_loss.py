"""Losses and scores of meshes: formulas by hand, even samples, bad input."""

from __future__ import annotations

import pytest
import torch

from hotlap.base.errors import DataError
from hotlap.mesh.graph_layers import MeshBuffers
from hotlap.mesh.loss import LossWeights, coarse_weights, mesh_loss, refine_weights, surface_samples
from hotlap.mesh.metrics import mesh_scores, vertex_agreement, vertex_normals
from hotlap.mesh.template import ellipsoid, icosphere

TETRAHEDRON = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])


def sphere_points(count: int, seed: int = 0) -> torch.Tensor:
    points = torch.randn(1, count, 3, generator=torch.Generator().manual_seed(seed))
    return points / points.norm(dim=2, keepdim=True)


def test_samples_lie_on_the_faces_by_area(device):
    corners = torch.tensor([[[0.0, 0, 0], [3, 0, 0], [0, 1, 0], [3, 1, 0], [4, 0, 0]]], device=device)
    faces = torch.tensor([[0, 1, 2], [1, 3, 2], [1, 4, 3]], device=device)
    points = surface_samples(corners, faces, 3500)[0].cpu()
    x, y = points[:, 0], points[:, 1]
    assert (points[:, 2] == 0).all() and (x >= 0).all() and (y >= 0).all() and (y <= 1).all() and (x + y <= 4.001).all()
    assert abs((x > 3).float().mean().item() - 0.5 / 3.5) < 0.005
    assert abs(x[x <= 3].mean().item() - 1.5) < 0.02 and abs(y[x <= 3].mean().item() - 0.5) < 0.01


def test_samples_follow_the_vertices():
    vertices = TETRAHEDRON[None].double().requires_grad_()
    faces = torch.tensor([[0, 1, 2], [0, 3, 1], [0, 2, 3], [1, 3, 2]])
    torch.autograd.gradcheck(lambda v: surface_samples(v, faces, 7), vertices)


def test_terms_by_hand():
    mesh = MeshBuffers(icosphere(0))
    start = mesh.vertices[None].double()
    vertices = start * 1.1
    vertices[0, 3] += torch.tensor([0.2, 0.0, 0.1]).double()
    points, normals = start * 1.05, start.clone()
    weights = LossWeights(samples=1, chamfer=2.0, edge=3.0, laplacian=5.0, move=7.0, normal=11.0)
    terms = mesh_loss(vertices, start, mesh, points, normals, weights=weights)
    moved = vertices[0] - start[0]
    assert terms["move"].item() == pytest.approx(7 * moved.square().sum(1).mean().item())
    lengths = [(vertices[0, a] - vertices[0, b]).square().sum().item() for a, b in mesh.edges.tolist()]
    assert terms["edge"].item() == pytest.approx(3 * sum(lengths) / 30)
    around = {v: [b if a == v else a for a, b in mesh.edges.tolist() if v in (a, b)] for v in range(12)}
    change = [(moved[v] - moved[around[v]].mean(0)).square().sum().item() for v in range(12)]
    assert terms["laplacian"].item() == pytest.approx(5 * sum(change) / 12)
    cloud = torch.cat([vertices, surface_samples(vertices, mesh.faces, 1)], 1)[0]
    pairs = (cloud[:, None] - points[0]).square().sum(2)
    want = 2 * (pairs.min(0).values.mean() + 0.55 * pairs.min(1).values.mean())
    assert terms["chamfer"].item() == pytest.approx(want.item())
    nearest = pairs[:12].argmin(1)
    cosines = []
    for a, b in mesh.edges.tolist():
        edge = (vertices[0, a] - vertices[0, b]) / (vertices[0, a] - vertices[0, b]).norm()
        cosines += [(edge @ normals[0, nearest[end]]).abs().item() for end in (a, b)]
    assert terms["normal"].item() == pytest.approx(11 * sum(cosines) / 60)


def test_each_object_has_its_own_loss_and_padding_counts_nothing(device):
    mesh = MeshBuffers(ellipsoid().levels[0]).to(device)
    vertices = torch.cat([mesh.vertices[None], 1.1 * mesh.vertices[None]])
    points = (0.2 * sphere_points(60).repeat(2, 1, 1) - torch.tensor([0, 0, 0.8])).to(device)
    normals = sphere_points(60).repeat(2, 1, 1).to(device)
    lengths = torch.tensor([60, 40], device=device)
    points[1, 40:] = 1e6
    weights = coarse_weights()
    both = mesh_loss(vertices, vertices, mesh, points, normals, lengths, weights=weights)
    alone = mesh_loss(vertices[1:], vertices[1:], mesh, points[1:, :40], normals[1:, :40], weights=weights)
    for name, term in both.items():
        assert term.shape == (2,) and term[1].item() == pytest.approx(alone[name].item(), rel=1e-5, abs=1e-9)


def test_the_published_weights():
    assert coarse_weights() == LossWeights(chamfer=3000, back=0.55, edge=350, normal=0.5, laplacian=1500, move=50)
    assert (refine_weights().edge, refine_weights().move) == (500, 100)


def test_scores_of_a_shifted_sphere(device):
    level = icosphere(4)
    points = sphere_points(500).to(device)
    vertices = 1.005 * level.vertices[None].to(device)
    scores = mesh_scores(vertices, level.faces.to(device), points, points)
    assert 2 * 0.005**2 < scores["chamfer"].item() < 0.01
    assert scores["normal_consistency"].item() > 0.99
    far = mesh_scores(1.2 * level.vertices[None].to(device), level.faces.to(device), points)
    assert far["f1_2tau"].item() == 0 and far["chamfer"].item() > 0.07 and "normal_consistency" not in far
    same = mesh_scores(points, level.faces.to(device) % 500, points)
    assert same["f1_tau"].item() == 100 and same["chamfer"].item() == 0


def test_the_threshold_is_on_the_squared_distance():
    points, vertices = torch.zeros(1, 1, 3), torch.tensor([[[0.009, 0, 0], [0.013, 0, 0], [0.02, 0, 0]]])
    scores = mesh_scores(vertices, torch.tensor([[0, 1, 2]]), points)
    assert scores["precision_tau"].item() == pytest.approx(100 / 3)
    assert scores["precision_2tau"].item() == pytest.approx(200 / 3)
    assert scores["recall_tau"].item() == 100
    assert scores["f1_tau"].item() == pytest.approx(2 * (100 / 3) * 100 / (400 / 3))


def test_vertices_that_are_no_numbers_have_no_good_scores():
    level = icosphere(1)
    points = sphere_points(50)
    vertices = level.vertices[None].clone()
    vertices[0, 3] = torch.nan
    scores = mesh_scores(vertices, level.faces, points, points)
    assert not scores["chamfer"].isfinite().any() and scores["normal_consistency"].isnan().all()


def test_normals_point_outward():
    level = icosphere(2)
    normals = vertex_normals(level.vertices[None], level.faces)[0]
    assert (normals * level.vertices).sum(1).min() > 0.99


def test_an_object_without_points_is_refused():
    vertices, faces = torch.zeros(2, 4, 3), torch.tensor([[0, 1, 2]])
    with pytest.raises(DataError, match="object 1 has 0 ground-truth points"):
        mesh_scores(vertices, faces, torch.zeros(2, 5, 3), None, torch.tensor([5, 0]))
    with pytest.raises(DataError, match="object 0 has 0 ground-truth points"):
        mesh_scores(vertices, faces, torch.zeros(2, 0, 3))


def test_agreement_is_relative_to_the_objects_size():
    ref = torch.zeros(1, 4, 3)
    ref[0, 1] = torch.tensor([3.0, 4, 0])
    out = ref + torch.tensor([0.004, 0, 0])
    (agreement,) = vertex_agreement(out, ref)
    assert agreement.value == pytest.approx(1 - 0.004 / 5) and agreement.passed
    assert not vertex_agreement(ref + torch.tensor([0.006, 0, 0]), ref)[0].passed
    assert vertex_agreement(ref * 0, ref * 0) == []
