"""Templates: the published counts, closed and oriented meshes, supports that are Laplacians."""

from __future__ import annotations

import pytest
import torch

from hotlap.mesh.template import Level, ellipsoid, hypothesis_graph, icosphere

LEVELS = [*ellipsoid().levels, icosphere(1), icosphere(4)]


def dense(level: Level) -> torch.Tensor:
    """The support as a matrix."""
    count = len(level.vertices)
    rows = torch.arange(count)[:, None].expand_as(level.neighbours)
    matrix = torch.diag(level.support[:, 0].double())
    return matrix.index_put((rows, level.neighbours), level.support[:, 1:].double(), accumulate=True)


@pytest.mark.parametrize(
    ("level", "vertices", "edges", "faces", "entries"),
    [
        (LEVELS[0], 156, 462, 308, 1080),
        (LEVELS[1], 618, 1848, 1232, 4314),
        (LEVELS[2], 2466, 7392, 4928, 17250),
        (LEVELS[3], 42, 120, 80, 282),
        (LEVELS[4], 2562, 7680, 5120, 17922),
    ],
)
def test_published_counts(level, vertices, edges, faces, entries):
    assert (len(level.vertices), len(level.edges), len(level.faces)) == (vertices, edges, faces)
    assert int((level.support != 0).sum()) == entries


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: str(len(level.vertices)))
def test_closed_and_seen_from_outside(level):
    directed = torch.cat([level.faces[:, [0, 1]], level.faces[:, [1, 2]], level.faces[:, [2, 0]]])
    assert len(torch.unique(directed, dim=0)) == len(directed)
    assert torch.equal(torch.unique(directed.flip(1), dim=0), torch.unique(directed, dim=0))
    a, b, c = (level.vertices[level.faces] - level.vertices.mean(0)).unbind(1)
    assert (((a + b + c) * torch.linalg.cross(b - a, c - a)).sum(1) > 0).all()


@pytest.mark.parametrize("level", [LEVELS[n] for n in (0, 1, 3)], ids=lambda level: str(len(level.vertices)))
def test_the_support_is_the_scaled_laplacian(level):
    first, second = level.edges.unbind(1)
    count = len(level.vertices)
    adjacency = torch.zeros(count, count, dtype=torch.float64)
    adjacency[first, second] = adjacency[second, first] = 1
    degree = adjacency.sum(1)
    assert torch.equal(degree.long(), level.degrees)
    laplacian = torch.eye(count) - adjacency / (degree[:, None] * degree).sqrt()
    got = dense(level)
    torch.testing.assert_close(got, 2 / 1.5 * laplacian - torch.eye(count), rtol=0, atol=1e-6)
    eigenvalues = torch.linalg.eigvalsh(got)
    assert eigenvalues[0] > -1 - 1e-6 and eigenvalues[-1] <= 1


def test_a_level_begins_with_the_one_before_and_halves_its_edges():
    for coarse, fine in zip(ellipsoid().levels, ellipsoid().levels[1:], strict=False):
        count = len(coarse.vertices)
        assert torch.equal(fine.vertices[:count], coarse.vertices)
        torch.testing.assert_close(fine.vertices[count:], coarse.vertices[coarse.edges].mean(1))


def test_the_ellipsoid_lies_before_the_camera():
    vertices = ellipsoid().levels[0].vertices
    assert vertices.abs().amax(0)[:2].tolist() == pytest.approx([0.276, 0.194], abs=0.004)
    assert [vertices[:, 2].min().item(), vertices[:, 2].max().item()] == pytest.approx([-1.0, -0.6], abs=0.004)


def test_hypotheses_are_where_the_vertex_is_and_on_a_sphere():
    graph = hypothesis_graph()
    assert graph.offsets.shape == (43, 3) and graph.offsets[0].tolist() == [0, 0, 0]
    assert graph.offsets[1:].norm(dim=1).tolist() == pytest.approx([0.02] * 42)
    assert torch.equal(graph.support, graph.support.T)
    eigenvalues = torch.linalg.eigvalsh(graph.support.double())
    assert [eigenvalues[0].item(), eigenvalues[-1].item()] == pytest.approx([-1, 1], abs=1e-6)
