"""What the networks are trained on: how far the mesh is from the points of the surface, and how well it behaves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hotlap.kernels.chamfer.op import chamfer
from hotlap.mesh.graph_layers import MeshBuffers

_ROOT = 1.2207440846057596
"""Of x^4 = x + 1: multiples of its inverse powers fill a cube evenly."""


@dataclass(frozen=True, kw_only=True)
class LossWeights:
    """The published weights of the terms."""

    chamfer: float = 3000.0
    """Squared distance from each surface point to the mesh."""
    back: float = 0.55
    """The share of the squared distance from the mesh to the surface points in that."""
    edge: float = 350.0
    """Squared length of edges."""
    normal: float = 0.5
    """Cosine between an edge and the normal of the surface point nearest to its end."""
    laplacian: float = 1500.0
    """Squared change of a vertex's place relative to its neighbours."""
    move: float = 50.0
    """Squared movement of vertices."""
    first: float = 0.1
    """The share of the last two terms in the first block, which has to leave the ellipsoid; our choice."""
    samples: int = 4000
    """Points on the faces that stand for the mesh beside its vertices."""


def coarse_weights(samples: int = 4000) -> LossWeights:
    """Those of the first stage."""
    return LossWeights(samples=samples)


def refine_weights(samples: int = 4000) -> LossWeights:
    """Those of the second stage: shorter edges, less movement."""
    return LossWeights(edge=500.0, move=100.0, first=1.0, samples=samples)


def mesh_loss(
    vertices: Tensor,  # [B, N, 3]
    start: Tensor,  # [B, N, 3] where they were before the block
    mesh: MeshBuffers,
    points: Tensor,  # [B, P, 3] on the true surface
    normals: Tensor,  # [B, P, 3] of unit length
    num_points: Tensor | None = None,  # [B] how many of them are real
    *,
    weights: LossWeights,
    first: bool = False,
) -> dict[str, Tensor]:
    """The weighted terms of each object [B], by name. Differentiable in the vertices."""
    cloud = torch.cat([vertices, surface_samples(vertices, mesh.faces, weights.samples)], 1)
    near = chamfer(cloud, points, None, num_points)
    count = points.shape[1] if num_points is None else num_points
    there, back = near.y_distance.sum(1) / count, near.x_distance.mean(1)
    gentle = weights.first if first else 1.0
    change = laplacian(vertices, mesh) - laplacian(start, mesh)
    index = near.x_index[:, : vertices.shape[1]]
    return {
        "chamfer": weights.chamfer * (there + weights.back * back),
        "edge": weights.edge * _edges(vertices, mesh.edges).square().sum(2).mean(1),
        "normal": weights.normal * edge_slope(vertices, mesh.edges, normals, index),
        "laplacian": gentle * weights.laplacian * change.square().sum(2).mean(1),
        "move": gentle * weights.move * (vertices - start).square().sum(2).mean(1),
    }


def surface_samples(vertices: Tensor, faces: Tensor, count: int) -> Tensor:  # [B, N, 3], [F, 3]
    """Points [B, count, 3] spread evenly over the area of the faces. Differentiable in the vertices.

    They are the same fractions of the area and of the faces every time: nothing is drawn, so a loss can be repeated.
    """
    steps = torch.arange(1, count + 1, device=vertices.device, dtype=torch.float64)
    along, first, second = ((0.5 + steps / _ROOT**power) % 1 for power in (1, 2, 3))
    corners = vertices.index_select(1, faces.flatten()).unflatten(1, (-1, 3))  # [B, F, 3, 3]
    with torch.no_grad():
        sides = corners[:, :, 1:] - corners[:, :, :1]
        area = torch.linalg.cross(sides[:, :, 0], sides[:, :, 1]).norm(dim=2).double().cumsum(1)
        wanted = along * area[:, -1:]
        face = torch.searchsorted(area, wanted).clamp(max=faces.shape[0] - 1)
    picked = corners.gather(1, face[..., None, None].expand(-1, -1, 3, 3))  # [B, count, 3, 3]
    root = first.sqrt()
    shares = torch.stack([1 - root, root * (1 - second), root * second], 1).to(vertices.dtype)
    return (picked * shares[:, :, None]).sum(2)


def laplacian(vertices: Tensor, mesh: MeshBuffers) -> Tensor:  # [B, N, 3]
    """Each vertex relative to the mean of its neighbours [B, N, 3]."""
    real = (mesh.values[:, 1:] != 0).to(vertices.dtype)
    index = mesh.columns[:, 1:]
    around = (vertices.index_select(1, index.flatten()).unflatten(1, index.shape) * real[..., None]).sum(2)
    return vertices - around / real.sum(1, keepdim=True)


def edge_slope(vertices: Tensor, edges: Tensor, normals: Tensor, index: Tensor) -> Tensor:
    """The mean |cosine| between edges and the normals of the points nearest to their ends [B]; index [B, N]."""
    beside = normals.gather(1, index.clamp(min=0)[..., None].expand(-1, -1, 3))  # [B, N, 3]
    direction = F.normalize(_edges(vertices, edges), dim=2, eps=1e-12)
    ends = [(direction * beside.index_select(1, end)).sum(2).abs() for end in edges.unbind(1)]
    return 0.5 * (ends[0].mean(1) + ends[1].mean(1))


def _edges(vertices: Tensor, edges: Tensor) -> Tensor:
    first, second = edges.unbind(1)
    return vertices.index_select(1, first) - vertices.index_select(1, second)
