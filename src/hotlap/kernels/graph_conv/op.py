"""A graph convolution with two supports on a fixed mesh, by the first implementation that can run here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hotlap.base.shapes import bind_dims
from hotlap.kernels.choose import Choice, choose
from hotlap.kernels.graph_conv import cpu, triton
from hotlap.kernels.graph_conv.reference import mix_ref
from hotlap.kernels.graph_conv.support import Support


def _always(device: torch.device, dtype: torch.dtype) -> str:
    return ""


WHY_NOT: dict[str, Callable[[torch.device, torch.dtype], str]] = {
    "triton": triton.why_not,
    "cpu": cpu.why_not,
    "reference": _always,
}
MIXES: dict[str, Callable[..., None]] = {"triton": triton.mix, "cpu": cpu.mix}
UNMIXES: dict[str, Callable[..., None]] = {"triton": triton.unmix, "cpu": cpu.unmix}
IMPLS = tuple(WHY_NOT)
"""The implementations, those that are preferred first."""


def graph_conv(
    x: Tensor,  # [..., V, F]
    weight: Tensor,  # [F, 2 O]: for the vertex itself, and for the support
    bias: Tensor,  # [O]
    support: Support,
    *,
    relu: bool = True,
    residual: Tensor | None = None,  # [..., V, O]
    share: float = 1.0,
    impl: str = "auto",
) -> Tensor:
    """share * (relu(x W0 + A x W1 + b) + residual) [..., V, O], in the number format of x W.

    One matrix product makes x W0 and x W1 side by side, the rest is one pass over them. Differentiable in everything
    but the support.
    """
    return graph_mix(x @ weight, bias, support, relu=relu, residual=residual, share=share, impl=impl)


def graph_mix(
    y: Tensor,  # [..., V, 2 O]
    bias: Tensor,  # [O]
    support: Support,
    *,
    relu: bool = True,
    residual: Tensor | None = None,  # [..., V, O]
    share: float = 1.0,
    impl: str = "auto",
) -> Tensor:
    """share * (relu(y0 + A y1 + b) + residual) [..., V, O] of the two halves of y."""
    vertices, width = support.num_vertices, bias.shape[0]
    named: dict[str, tuple[Any, str]] = {"y": (y, f"... {vertices} {2 * width}")}
    if residual is not None:
        named["residual"] = (residual, f"... {vertices} {width}")
    bind_dims(**named)
    name = _pick(impl, y.device, y.dtype)
    if name == "reference" or y.numel() == 0:
        return mix_ref(y, bias, support, relu=relu, residual=residual, share=share)
    rows = y.reshape(-1, vertices, 2 * width)
    more = None if residual is None else residual.to(y.dtype).reshape(-1, vertices, width)
    tensors = [t for t in (y, bias, residual) if t is not None]
    keep = relu and torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    table = (support.columns, support.values, support.dense)
    return _mix(rows, bias, more, *table, relu, share, keep, name)[0].view(*y.shape[:-1], width)


def graph_conv_choice(device: torch.device, dtype: torch.dtype, impl: str = "auto") -> Choice:
    """The implementation that such tensors get, and the reasons against those before it."""
    return choose({name: partial(ask, device, dtype) for name, ask in WHY_NOT.items()}, impl)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _pick(impl: str, device: torch.device, dtype: torch.dtype) -> str:
    return graph_conv_choice(device, dtype, impl).impl


@torch.library.custom_op("hotlap::graph_mix", mutates_args=())
def _mix(
    y: Tensor, bias: Tensor, residual: Tensor | None, columns: Tensor, values: Tensor, dense: Tensor,
    relu: bool, share: float, keep: bool, impl: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The result, and where it was positive before anything was added; that is empty unless kept."""
    shape = (*y.shape[:2], y.shape[2] // 2)
    out, positive = y.new_empty(shape), y.new_empty(shape if keep else [0, 0, 0], dtype=torch.int8)
    MIXES[impl](y, bias, residual, Support(columns, values, dense), relu, share, out, positive)
    return out, positive


@_mix.register_fake
def _(
    y: Tensor, bias: Tensor, residual: Tensor | None, columns: Tensor, values: Tensor, dense: Tensor,
    relu: bool, share: float, keep: bool, impl: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    shape = (*y.shape[:2], y.shape[2] // 2)
    return y.new_empty(shape), y.new_empty(shape if keep else [0, 0, 0], dtype=torch.int8)


@torch.library.custom_op("hotlap::graph_unmix", mutates_args=())
def _unmix(
    v_out: Tensor, positive: Tensor, columns: Tensor, values: Tensor, dense: Tensor, share: float, impl: str
) -> Tensor:
    v_y = v_out.new_empty([*v_out.shape[:2], 2 * v_out.shape[2]])
    UNMIXES[impl](v_out, positive, Support(columns, values, dense), share, v_y)
    return v_y


@_unmix.register_fake
def _(
    v_out: Tensor, positive: Tensor, columns: Tensor, values: Tensor, dense: Tensor, share: float, impl: str
) -> Tensor:
    return v_out.new_empty([*v_out.shape[:2], 2 * v_out.shape[2]])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, bias, residual, columns, values, dense, _, ctx.share, _, ctx.impl = inputs
    ctx.save_for_backward(output[1], columns, values, dense)
    ctx.mark_non_differentiable(output[1])
    ctx.width, ctx.bias_type, ctx.residual = bias.shape[0], bias.dtype, residual is not None


def _differentiate(ctx: Any, v_out: Tensor, *_: Any) -> tuple[Any, ...]:
    positive, columns, values, dense = ctx.saved_tensors
    v_y = _unmix(v_out, positive, columns, values, dense, ctx.share, ctx.impl)
    v_bias = v_y[..., : ctx.width].sum((0, 1), dtype=torch.float32).to(ctx.bias_type)
    return v_y, v_bias, v_out * ctx.share if ctx.residual else None, *[None] * 7


_mix.register_autograd(_differentiate, setup_context=_keep)
