"""Nearest squared distances between two clouds in plain torch: the truth that every implementation is held to."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Nearest(NamedTuple):
    """For each point the nearest of the other cloud; points behind a cloud's length have distance 0 and index -1."""

    x_distance: Tensor
    """[B, N] squared distance to the nearest point of y; infinite where y has none."""
    y_distance: Tensor
    """[B, M] squared distance to the nearest point of x; infinite where x has none."""
    x_index: Tensor
    """[B, N] int64 which point of y; -1 where there is none."""
    y_index: Tensor
    """[B, M] int64 which point of x; -1 where there is none."""


def chamfer_ref(
    x: Tensor,  # [B, N, 3]
    y: Tensor,  # [B, M, 3]
    x_lengths: Tensor | None = None,  # [B] how many points of x count; None: all
    y_lengths: Tensor | None = None,  # [B]
) -> Nearest:
    """The nearest squared distances of both directions, and which points they lead to. Differentiable in x and y."""
    pairs = (x[:, :, None] - y[:, None]).square().sum(-1)
    x_there, y_there = real_points(x, x_lengths), real_points(y, y_lengths)
    x_distance, x_index = _nearest(pairs, x_there, y_there)
    y_distance, y_index = _nearest(pairs.transpose(1, 2), y_there, x_there)
    return Nearest(x_distance, y_distance, x_index, y_index)


def real_points(points: Tensor, lengths: Tensor | None) -> Tensor:  # [B, N, 3], [B] -> [B, N] bool
    """Which points lie before their cloud's length."""
    numbers = torch.arange(points.shape[1], device=points.device)
    if lengths is None:
        return torch.ones(points.shape[:2], dtype=torch.bool, device=points.device)
    return numbers < lengths[:, None]


def _nearest(pairs: Tensor, queries: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:  # [B, N, M], [B, N], [B, M]
    if pairs.shape[2] == 0:
        distance = pairs.new_full(pairs.shape[:2], torch.inf)
        index = torch.full(pairs.shape[:2], -1, device=pairs.device)
    else:
        distance, index = pairs.masked_fill(~targets[:, None], torch.inf).min(2)
    distance, index = distance.masked_fill(~queries, 0), index.masked_fill(~queries, -1)
    return distance, index.masked_fill(distance.isinf(), -1)
