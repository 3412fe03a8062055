"""A norm of each channel of each image, with an addition and a ReLU behind it, by the first implementation that can."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hotlap.base.shapes import bind_dims
from hotlap.device.layout import format_of
from hotlap.kernels.choose import Choice, choose
from hotlap.kernels.instance_norm import triton
from hotlap.kernels.instance_norm.reference import instance_norm_ref


def _always(device: torch.device, dtype: torch.dtype) -> str:
    return ""


WHY_NOT: dict[str, Callable[[torch.device, torch.dtype], str]] = {"triton": triton.why_not, "reference": _always}
IMPLS = tuple(WHY_NOT)
"""The implementations, those that are preferred first."""


def instance_norm(
    x: Tensor,  # [n, C, H, W]
    weight: Tensor,  # [C]
    bias: Tensor,  # [C]
    *,
    eps: float = 1e-5,
    residual: Tensor | None = None,  # [n, C, H, W]
    relu: bool = False,
    impl: str = "auto",
) -> Tensor:
    """relu((x - mean) / sqrt(var + eps) * weight + bias + residual) [n, C, H, W], in the number format and layout of x.

    Mean and variance are those of one channel of one image. Differentiable in x, weight, bias and residual.
    """
    named: dict[str, tuple[Any, str]] = {"x": (x, "n C H W"), "weight": (weight, "C"), "bias": (bias, "C")}
    if residual is not None:
        named["residual"] = (residual, "n C H W")
    bind_dims(**named)
    if _pick(impl, x.device, x.dtype) == "reference" or x.numel() == 0:
        return instance_norm_ref(x, weight, bias, eps=eps, residual=residual, relu=relu)
    given = (x, weight, bias) if residual is None else (x, weight, bias, residual)
    keep = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
    dense = x.contiguous(memory_format=format_of(x))
    more = None if residual is None else residual.to(x.dtype).contiguous(memory_format=format_of(dense))
    return _norm(dense, weight, bias, more, eps, relu, keep)[0]


def instance_norm_choice(device: torch.device, dtype: torch.dtype, impl: str = "auto") -> Choice:
    """The implementation that such tensors get, and the reasons against those before it."""
    return choose({name: partial(ask, device, dtype) for name, ask in WHY_NOT.items()}, impl)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _pick(impl: str, device: torch.device, dtype: torch.dtype) -> str:
    return instance_norm_choice(device, dtype, impl).impl


@torch.library.custom_op("hotlap::instance_norm", mutates_args=())
def _norm(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, eps: float, relu: bool, keep: bool
) -> tuple[Tensor, Tensor]:
    """The result, and mean and 1 / deviation [n, 2, C] of each channel; those are empty unless kept."""
    out, kept = torch.empty_like(x), _room(x, keep)
    triton.norm(x, weight, bias, residual, eps, relu, out, kept)
    return out, kept


@_norm.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, eps: float, relu: bool, keep: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), _room(x, keep)


def _room(x: Tensor, keep: bool) -> Tensor:
    return x.new_empty([x.shape[0], 2, x.shape[1]] if keep else [0, 2, 0], dtype=torch.float32)


@torch.library.custom_op("hotlap::instance_norm_back", mutates_args=())
def _norm_back(
    v_out: Tensor, x: Tensor, weight: Tensor, out: Tensor | None, kept: Tensor, split: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by x, by bias and weight [2, C] and, where ``split``, by residual.

    ``out`` is given where it was cut off at 0.
    """
    v_x, v_residual = torch.empty_like(x), torch.empty_like(x) if split else x.new_empty([0])
    return v_x, triton.norm_back(v_out, x, weight, out, kept, v_x, v_residual), v_residual


@_norm_back.register_fake
def _(
    v_out: Tensor, x: Tensor, weight: Tensor, out: Tensor | None, kept: Tensor, split: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), kept.new_empty([2, x.shape[1]]), torch.empty_like(x) if split else x.new_empty([0])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, residual, _, relu, _ = inputs
    out, kept = output
    ctx.save_for_backward(x, weight, out if relu else None, kept)
    ctx.mark_non_differentiable(kept)
    ctx.bias_type, ctx.residual = bias.dtype, residual is not None


def _differentiate(ctx: Any, v_out: Tensor, *_: Any) -> tuple[Any, ...]:
    x, weight, out, kept = ctx.saved_tensors
    v_out = v_out.contiguous(memory_format=format_of(x))
    # Without a cut the residual's gradient is the result's own.
    split = ctx.residual and out is not None
    v_x, sums, v_residual = _norm_back(v_out, x, weight, out, kept, split)
    more = (v_residual if split else v_out) if ctx.residual else None
    return v_x, sums[1].to(weight.dtype), sums[0].to(ctx.bias_type), more, None, None, None


_norm.register_autograd(_differentiate, setup_context=_keep)
