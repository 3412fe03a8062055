"""A graph convolution in plain torch: the truth that every implementation is held to."""

from __future__ import annotations

import torch
from torch import Tensor

from hotlap.kernels.graph_conv.support import Support


def graph_conv_ref(
    x: Tensor,  # [..., V, F]
    weight: Tensor,  # [F, 2 O]: for the vertex itself, and for the support
    bias: Tensor,  # [O]
    support: Support,
    *,
    relu: bool = True,
    residual: Tensor | None = None,  # [..., V, O]
    share: float = 1.0,
) -> Tensor:
    """share * (relu(x W0 + A x W1 + b) + residual) [..., V, O]. Differentiable in all but the support."""
    return mix_ref(x @ weight, bias, support, relu=relu, residual=residual, share=share)


def mix_ref(
    y: Tensor,  # [..., V, 2 O]
    bias: Tensor,  # [O]
    support: Support,
    *,
    relu: bool = True,
    residual: Tensor | None = None,  # [..., V, O]
    share: float = 1.0,
) -> Tensor:
    """share * (relu(y0 + A y1 + b) + residual) [..., V, O] of the two halves of y."""
    own, others = y.chunk(2, -1)
    out = own + mixed(others, support) + bias.to(y.dtype)
    out = torch.relu(out) if relu else out
    out = out if residual is None else out + residual.to(out.dtype)
    return out if share == 1 else out * share


def mixed(y: Tensor, support: Support) -> Tensor:  # [..., V, O]
    """A y."""
    if support.dense.numel():
        return support.dense.to(y.dtype) @ y
    return (support.values.to(y.dtype)[..., None] * y[..., support.columns.long(), :]).sum(-2)
