"""An instance norm with what follows it in plain torch: the truth that every implementation is held to."""

from __future__ import annotations

import torch
from torch import Tensor


def instance_norm_ref(
    x: Tensor,  # [n, C, H, W]
    weight: Tensor,  # [C]
    bias: Tensor,  # [C]
    *,
    eps: float = 1e-5,
    residual: Tensor | None = None,  # [n, C, H, W]
    relu: bool = False,
) -> Tensor:
    """relu((x - mean) / sqrt(var + eps) * weight + bias + residual) [n, C, H, W], each channel of each image by itself.

    16-bit numbers are computed in float32 and rounded once. Differentiable in x, weight, bias and residual.
    """
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    away = wide - wide.mean((2, 3), keepdim=True)
    out = away * torch.rsqrt(away.square().mean((2, 3), keepdim=True) + eps) * weight.to(wide.dtype)[:, None, None]
    out = out + bias.to(wide.dtype)[:, None, None]
    out = out if residual is None else out + residual.to(wide.dtype)
    return (torch.relu(out) if relu else out).to(x.dtype)
