"""Mean and maximum over the channels of each pixel, by the first implementation that can run here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hotlap.base.shapes import bind_dims
from hotlap.device.layout import format_of
from hotlap.kernels.channel_pool import triton
from hotlap.kernels.channel_pool.reference import channel_pool_ref
from hotlap.kernels.choose import Choice, choose


def _always(device: torch.device, dtype: torch.dtype) -> str:
    return ""


WHY_NOT: dict[str, Callable[[torch.device, torch.dtype], str]] = {"triton": triton.why_not, "reference": _always}
IMPLS = tuple(WHY_NOT)
"""The implementations, those that are preferred first."""


def channel_pool(x: Tensor, *, impl: str = "auto") -> Tensor:  # [n, C, H, W] -> [n, 2, H, W]
    """Mean and maximum of each pixel's channels, in the number format and layout of x. Differentiable."""
    bind_dims(x=(x, "n C H W"))
    if _pick(impl, x.device, x.dtype) == "reference" or x.numel() == 0:
        return channel_pool_ref(x)
    return _pool(x.contiguous(memory_format=format_of(x)))


def channel_pool_choice(device: torch.device, dtype: torch.dtype, impl: str = "auto") -> Choice:
    """The implementation that such tensors get, and the reasons against those before it."""
    return choose({name: partial(ask, device, dtype) for name, ask in WHY_NOT.items()}, impl)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _pick(impl: str, device: torch.device, dtype: torch.dtype) -> str:
    return channel_pool_choice(device, dtype, impl).impl


@torch.library.custom_op("hotlap::channel_pool", mutates_args=())
def _pool(x: Tensor) -> Tensor:
    out = _room(x)
    triton.pool(x, out)
    return out


@_pool.register_fake
def _(x: Tensor) -> Tensor:
    return _room(x)


def _room(x: Tensor) -> Tensor:
    return torch.empty_like(x[:, :1].expand(-1, 2, -1, -1), memory_format=format_of(x))


def _keep(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs, output)


def _differentiate(ctx: Any, v_out: Tensor) -> Tensor:
    x, out = ctx.saved_tensors
    first = x == out[:, 1:]  # the maximum is one of the channels, so that it is met exactly
    share = v_out[:, 1:] / first.sum(1, keepdim=True)
    return torch.where(first, share, 0) + v_out[:, :1] / x.shape[1]


_pool.register_autograd(_differentiate, setup_context=_keep)
