"""How good a mesh is, by points of the true surface."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hotlap.base.errors import DataError
from hotlap.kernels.chamfer.op import chamfer
from hotlap.kernels.chamfer.reference import real_points
from hotlap.workload import Agreement

TAU = 1e-4
"""Threshold of the F-score, on the squared distance: 0.01 of the unit."""
NEAR_ENOUGH = 1e-3
"""Mean vertex error that a faster way to run a network may make, over the size of the object."""


@torch.no_grad()
def mesh_scores(
    vertices: Tensor,  # [B, N, 3]
    faces: Tensor,  # [F, 3]
    points: Tensor,  # [B, P, 3] on the true surface
    normals: Tensor | None = None,  # [B, P, 3]
    num_points: Tensor | None = None,  # [B] how many of them are real
    tau: float = TAU,
) -> dict[str, Tensor]:
    """By name [B]: chamfer, f1_tau, f1_2tau, precision and recall of both, and normal_consistency if there are normals.

    Chamfer is the sum of both mean squared distances between vertices and points. F-scores are in percent, with
    thresholds on the squared distance. Normal consistency is the mean |cosine| between the normals of vertices and
    those of their nearest points, 1 at best.
    """
    counts = torch.full((len(points),), points.shape[1]) if num_points is None else num_points.cpu()
    empty = (counts <= 0).nonzero().flatten().tolist()
    if empty or points.shape[1] == 0:
        raise DataError(f"object {empty[0] if empty else 0} has 0 ground-truth points", expected="at least 1")
    near = chamfer(vertices.float(), points.float(), None, num_points)
    real = real_points(points, num_points)
    count = real.sum(1)
    scores = {"chamfer": near.x_distance.mean(1) + near.y_distance.sum(1) / count}
    for name, limit in (("tau", tau), ("2tau", 2 * tau)):
        precision = 100 * (near.x_distance <= limit).float().mean(1)
        recall = 100 * ((near.y_distance <= limit) & real).sum(1) / count
        scores[f"f1_{name}"] = 2 * precision * recall / (precision + recall).clamp(min=1e-12)
        scores[f"precision_{name}"], scores[f"recall_{name}"] = precision, recall
    if normals is not None:
        index = near.x_index.clamp(min=0)  # a vertex that is NaN has no nearest point; its scores are NaN too
        beside = normals.gather(1, index[..., None].expand(-1, -1, 3)).float()
        cosine = F.cosine_similarity(vertex_normals(vertices.float(), faces), beside, dim=2)
        scores["normal_consistency"] = cosine.abs().mean(1)
    return scores


def vertex_normals(vertices: Tensor, faces: Tensor) -> Tensor:  # [B, N, 3], [F, 3]
    """Unit normals [B, N, 3], outward, each the mean of the faces around weighted by their area."""
    a, b, c = (vertices[:, corner] for corner in faces.unbind(1))
    normal = torch.linalg.cross(b - a, c - a)
    total = torch.zeros_like(vertices)
    for corner in faces.unbind(1):
        total.index_add_(1, corner, normal)
    return F.normalize(total, dim=2, eps=1e-12)


def vertex_agreement(out: Tensor, ref: Tensor) -> list[Agreement]:  # [n, N, 3] each
    """One minus the mean distance between two predictions of a vertex over the object's size, from corner to corner."""
    size = (ref.amax(1) - ref.amin(1)).norm(dim=1)
    if not bool((size > 0).all()):
        return []
    error = ((out - ref).norm(dim=2).mean(1) / size).max().item()
    return [Agreement(name="vertices in place", value=1 - error, at_least=1 - NEAR_ENOUGH)]
