"""Nearest points on the CPU, compiled by numba."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

from hotlap.kernels.chamfer.reference import Nearest
from hotlap.kernels.threads import in_threads


def why_not(device: torch.device, dtype: torch.dtype) -> str:
    """Why this implementation cannot search such clouds; '' if it can."""
    if device.type != "cpu":
        return f"the tensors are on {device.type}"
    if dtype == torch.float64:
        return "it computes in float32"
    return "" if find_spec("numba") is not None else "numba is not installed"


def search(x: Tensor, y: Tensor, x_lengths: Tensor | None, y_lengths: Tensor | None) -> Nearest:
    """The nearest points of both directions; ``chamfer_ref`` says which."""
    x, y = x.detach().float().contiguous(), y.detach().float().contiguous()
    x_count, y_count = _counts(x, x_lengths), _counts(y, y_lengths)
    x_distance, x_index = _one_way(x, y, x_count, y_count)
    y_distance, y_index = _one_way(y, x, y_count, x_count)
    return Nearest(x_distance, y_distance, x_index, y_index)


def _counts(points: Tensor, lengths: Tensor | None) -> Tensor:
    if lengths is None:
        return torch.full((len(points),), points.shape[1])
    return lengths.long().clamp(0, points.shape[1])


def _one_way(queries: Tensor, targets: Tensor, lengths: Tensor, num_targets: Tensor) -> tuple[Tensor, Tensor]:
    from hotlap.kernels.chamfer.cpu_kernels import nearest_kernel

    distance = queries.new_empty(queries.shape[:2])
    index = torch.empty(queries.shape[:2], dtype=torch.int64)
    columns = targets.transpose(1, 2).contiguous()  # neighbours in memory, so that several are compared at once
    arrays = [t.numpy() for t in (queries, columns, lengths, num_targets, distance, index)]
    in_threads(nearest_kernel, distance.numel(), *arrays)
    return distance, index


def gradients(
    x: Tensor, y: Tensor, found: Nearest, v_x: Tensor, v_y: Tensor
) -> tuple[Tensor, Tensor]:  # [B, N, 3], [B, M, 3], gradients by the distances [B, N], [B, M]
    """The gradients by x and y in float32, on any device."""
    grads = (torch.zeros_like(x, dtype=torch.float32), torch.zeros_like(y, dtype=torch.float32))
    points = (x.detach().float(), y.detach().float())
    for here, there, index, v in ((0, 1, found.x_index, v_x), (1, 0, found.y_index, v_y)):
        if points[there].shape[1] == 0:
            continue
        picked = index.clamp(min=0)[..., None].expand(-1, -1, 3)
        step = 2 * v.masked_fill(index < 0, 0)[..., None] * (points[here] - points[there].gather(1, picked))
        grads[here].add_(step)
        grads[there].scatter_add_(1, picked, -step)
    return grads
