"""The meshes that networks deform: an ellipsoid in three levels, a sphere, and the graph of points to move to.

All are generated here. A level has every edge of the one before cut in two.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

P = ParamSpec("P")
T = TypeVar("T")

RING_SIZES = (1, 6, 12, 17, 20, 22, 22, 20, 17, 12, 6, 1)
"""Vertices of the ellipsoid by ring, 156 in all: about 22 times the sine of the angle from the pole, so that edges are
alike and no vertex has more than 8 neighbours."""
RADII = (0.276, 0.194, 0.2)
CENTRE = (0.0, 0.0, -0.8)
"""The ellipsoid in the frame of the first camera, which looks along -z."""
MAX_EIGENVALUE = 1.5
"""No closed triangle mesh has a larger one of its normalised Laplacian.

Summing (x_a + x_b + x_c)^2 >= 0 over the faces gives sum_v deg(v) x_v^2 + 4 sum_edges x_a x_b >= 0, as an edge has two
faces and a vertex as many as edges; so the normalised adjacency has no eigenvalue below -1/2.
"""
HYPOTHESIS_RADIUS = 0.02
MAX_NEIGHBOURS = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Level:
    """One closed triangle mesh and what a graph convolution needs of it. All tensors are on the CPU."""

    vertices: Tensor
    """[V, 3] float32."""
    faces: Tensor
    """[F, 3] int64, counter-clockwise seen from outside."""
    edges: Tensor
    """[E, 2] int64, each once, the smaller number first; vertex V + i of the next level halves edge i."""
    neighbours: Tensor
    """[V, K] int64, filled up with the vertex itself; K = 8."""
    degrees: Tensor
    """[V] int64 how many of the neighbours are real."""
    support: Tensor
    """[V, 1 + K] float32: the scaled Laplacian 2 L / 1.5 - 1, of the vertex itself and its neighbours; 0 for filling.

    It is symmetric, and with the identity it makes the two supports of a Chebyshev convolution of first order.
    """


@dataclass(frozen=True, kw_only=True, eq=False)
class Template:
    """A mesh in levels, each with every edge of the one before cut in two."""

    levels: tuple[Level, ...]
    """Coarse to fine."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HypothesisGraph:
    """The places a vertex may move to: where it is, and the 42 vertices of a small sphere around it."""

    offsets: Tensor
    """[43, 3] float32, the first 0."""
    support: Tensor
    """[43, 43] float32: the scaled Laplacian of the sphere's edges and of one from the centre to each of its points."""


def _made_once(make: Callable[P, T]) -> Callable[P, T]:
    """``make`` with its results kept: real tensors, also when a model is built without memory or on a card."""

    @functools.cache
    def kept(*args: Any, **kwargs: Any) -> T:
        with _disable_current_modes(), torch.device("cpu"):
            return make(*args, **kwargs)

    return cast(Callable[P, T], functools.wraps(make)(kept))


@_made_once
def ellipsoid() -> Template:
    """The ellipsoid of 156, 618 and 2466 vertices that Pixel2Mesh++ starts from, in the frame of the first camera."""
    vertices, faces = _stacked_rings()
    vertices = vertices * torch.tensor(RADII) + torch.tensor(CENTRE)
    levels = [make_level(vertices, faces)]
    for _ in range(2):
        levels.append(make_level(*subdivide(levels[-1].vertices, levels[-1].faces, levels[-1].edges)))
    return Template(levels=tuple(levels))


@_made_once
def icosphere(subdivisions: int = 4) -> Level:
    """A sphere of radius 1 around the origin with 10 * 4^n + 2 vertices: 2562 for four subdivisions."""
    vertices, faces = _icosahedron()
    for _ in range(subdivisions):
        vertices, faces = subdivide(vertices, faces, edges_of(faces))
        vertices = vertices / vertices.norm(dim=1, keepdim=True)
    return make_level(vertices.float(), faces)


@_made_once
def hypothesis_graph() -> HypothesisGraph:
    """The 43 places around a vertex, on a sphere of radius 0.02."""
    sphere = icosphere(1)
    count = len(sphere.vertices) + 1
    adjacency = torch.zeros(count, count, dtype=torch.float64)
    first, second = (sphere.edges + 1).unbind(1)
    adjacency[first, second] = adjacency[second, first] = 1
    adjacency[0, 1:] = adjacency[1:, 0] = 1
    scale = adjacency.sum(1).rsqrt()
    laplacian = torch.eye(count, dtype=torch.float64) - scale[:, None] * adjacency * scale
    largest = torch.linalg.eigvalsh(laplacian)[-1]
    support = 2 / largest * laplacian - torch.eye(count, dtype=torch.float64)
    offsets = torch.cat([torch.zeros(1, 3), HYPOTHESIS_RADIUS * sphere.vertices])
    return HypothesisGraph(offsets=offsets, support=support.float())


def make_level(vertices: Tensor, faces: Tensor) -> Level:  # [V, 3], [F, 3]
    """The mesh with its edges, neighbours and support; it must be closed."""
    edges = edges_of(faces)
    assert 2 * len(edges) == 3 * len(faces), (len(edges), len(faces))
    count = len(vertices)
    both = torch.cat([edges, edges.flip(1)])
    both = both[(both[:, 0] * count + both[:, 1]).argsort()]
    degrees = torch.bincount(both[:, 0], minlength=count)
    assert int(degrees.max()) <= MAX_NEIGHBOURS, int(degrees.max())
    slot = torch.arange(len(both)) - (degrees.cumsum(0) - degrees)[both[:, 0]]
    neighbours = torch.arange(count)[:, None].repeat(1, MAX_NEIGHBOURS)
    neighbours[both[:, 0], slot] = both[:, 1]
    support = torch.zeros(count, 1 + MAX_NEIGHBOURS, dtype=torch.float64)
    support[:, 0] = 2 / MAX_EIGENVALUE - 1
    scale = degrees.double().rsqrt()
    support[both[:, 0], 1 + slot] = -2 / MAX_EIGENVALUE * scale[both[:, 0]] * scale[both[:, 1]]
    return Level(
        vertices=vertices, faces=faces, edges=edges, neighbours=neighbours, degrees=degrees, support=support.float()
    )


def edges_of(faces: Tensor) -> Tensor:  # [F, 3] -> [E, 2]
    """Each edge of the faces once, the smaller number first, in order of their numbers."""
    pairs = torch.cat([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]).sort(dim=1).values
    return torch.unique(pairs, dim=0)


def subdivide(vertices: Tensor, faces: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """The vertices with the middles of the edges behind them, and four faces for each."""
    count = len(vertices)
    middles = vertices[edges].mean(1)
    keys = edges[:, 0] * count + edges[:, 1]  # ascending, as the edges are
    corners = [faces[:, [a, b]].sort(dim=1).values for a, b in ((0, 1), (1, 2), (2, 0))]
    ab, bc, ca = (count + torch.searchsorted(keys, corner[:, 0] * count + corner[:, 1]) for corner in corners)
    a, b, c = faces.unbind(1)
    finer = [torch.stack(face, 1) for face in ((a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca))]
    return torch.cat([vertices, middles]), torch.stack(finer, 1).reshape(-1, 3)


def _stacked_rings() -> tuple[Tensor, Tensor]:
    """Points of the unit sphere [156, 3] in rings from the top (+y) down, and the faces between them."""
    points: list[tuple[float, float, float]] = []
    faces: list[tuple[int, int, int]] = []
    above: list[tuple[float, int]] = []
    for ring, size in enumerate(RING_SIZES):
        polar = math.pi * ring / (len(RING_SIZES) - 1)
        angles = [2 * math.pi * (k + 0.5 * (ring % 2)) / size for k in range(size)]
        here = [(angle, len(points) + k) for k, angle in enumerate(angles)]
        # Seen from outside with +y up, growing angles from +z to +x go to the right.
        points += [
            (math.sin(polar) * math.sin(angle), math.cos(polar), math.sin(polar) * math.cos(angle)) for angle in angles
        ]
        if above:
            faces += _strip(above, here)
        above = here
    return torch.tensor(points), torch.tensor(faces)


def _strip(above: list[tuple[float, int]], below: list[tuple[float, int]]) -> list[tuple[int, int, int]]:
    """The faces between two rings of (angle, vertex), each step along the ring whose next vertex comes first."""
    rings, at = (above, below), [0, 0]
    steps = [len(ring) if len(ring) > 1 else 0 for ring in rings]
    faces = []
    while at[0] < steps[0] or at[1] < steps[1]:
        ahead = [_angle_after(rings[k], at[k]) if at[k] < steps[k] else math.inf for k in (0, 1)]
        top, bottom = above[at[0] % len(above)][1], below[at[1] % len(below)][1]
        side = 0 if ahead[0] <= ahead[1] else 1
        at[side] += 1
        faces.append((top, bottom, rings[side][at[side] % len(rings[side])][1]))
    return faces


def _angle_after(ring: list[tuple[float, int]], step: int) -> float:
    """The angle of the vertex after ``step``, counted on past a full turn."""
    turns, number = divmod(step + 1, len(ring))
    return ring[number][0] + 2 * math.pi * turns


def _icosahedron() -> tuple[Tensor, Tensor]:
    """Twelve points on the unit sphere in float64, and twenty faces."""
    low, polar = math.sqrt(1 / 5), 2 / math.sqrt(5)
    points = [(0.0, 1.0, 0.0)]
    for ring in range(2):
        angles = [2 * math.pi * (k + 0.5 * ring) / 5 for k in range(5)]
        points += [(polar * math.sin(a), low * (1 - 2 * ring), polar * math.cos(a)) for a in angles]
    points.append((0.0, -1.0, 0.0))
    faces = []
    for k in range(5):
        up, up_next, down, down_next = 1 + k, 1 + (k + 1) % 5, 6 + k, 6 + (k + 1) % 5
        faces += [(0, up, up_next), (up, down, up_next), (up_next, down, down_next), (11, down_next, down)]
    return torch.tensor(points, dtype=torch.float64), torch.tensor(faces)
