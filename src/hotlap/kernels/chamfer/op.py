"""The nearest points of two clouds and how far they are, by the first implementation that can run here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hotlap.base.shapes import bind_dims
from hotlap.kernels.chamfer import cpu, cuda
from hotlap.kernels.chamfer.reference import Nearest, chamfer_ref
from hotlap.kernels.choose import Choice, choose


def _always(device: torch.device, dtype: torch.dtype) -> str:
    return ""


WHY_NOT: dict[str, Callable[[torch.device, torch.dtype], str]] = {
    "cuda": cuda.why_not,
    "cpu": cpu.why_not,
    "reference": _always,
}
SEARCHES: dict[str, Callable[[Tensor, Tensor, Tensor | None, Tensor | None], Nearest]] = {
    "cuda": cuda.search,
    "cpu": cpu.search,
}
GRADIENTS: dict[str, Callable[[Tensor, Tensor, Nearest, Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "cuda": cuda.gradients,
    "cpu": cpu.gradients,
}
IMPLS = tuple(WHY_NOT)
"""The implementations, those that are preferred first."""


def chamfer(
    x: Tensor,  # [B, N, 3]
    y: Tensor,  # [B, M, 3]
    x_lengths: Tensor | None = None,  # [B] how many points of x count; None: all
    y_lengths: Tensor | None = None,  # [B]
    *,
    impl: str = "auto",
) -> Nearest:
    """The nearest squared distances of both directions, and which points they lead to.

    Distances are float32 (float64 for float64), differentiable in x and y. Points behind a cloud's length have distance
    0 and index -1; where the other cloud has no point, the distance is infinite and the index -1. Memory grows with
    N + M, and nothing waits for the device.
    """
    named: dict[str, tuple[Any, str]] = {"x": (x, "B N 3"), "y": (y, "B M 3")}
    named |= {n: (t, "B") for n, t in (("x_lengths", x_lengths), ("y_lengths", y_lengths)) if t is not None}
    bind_dims(**named)
    name = _pick(impl, x.device, x.dtype)
    if name == "reference":
        kind = torch.float64 if x.dtype == torch.float64 else torch.float32
        return chamfer_ref(x.to(kind), y.to(kind), x_lengths, y_lengths)
    if type(x) is Tensor and type(y) is Tensor and not torch.compiler.is_compiling():
        return Nearest(*_Called.apply(x, y, x_lengths, y_lengths, name))
    return Nearest(*_chamfer(x, y, x_lengths, y_lengths, name))


def chamfer_choice(device: torch.device, dtype: torch.dtype, impl: str = "auto") -> Choice:
    """The implementation that such clouds get, and the reasons against those before it."""
    return choose({name: partial(ask, device, dtype) for name, ask in WHY_NOT.items()}, impl)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _pick(impl: str, device: torch.device, dtype: torch.dtype) -> str:
    return chamfer_choice(device, dtype, impl).impl


class _Called(torch.autograd.Function):
    """The search called plainly; what a compiler or a fake tensor sees is the operation below.

    On a card the kernels take half a millisecond and the two operations of the dispatcher nearly as long on the host.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, x_lengths: Tensor | None, y_lengths: Tensor | None, impl: str
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        found = SEARCHES[impl](x, y, x_lengths, y_lengths)
        ctx.save_for_backward(x, y, found.x_index, found.y_index)
        ctx.mark_non_differentiable(found.x_index, found.y_index)
        ctx.impl = impl
        return found.x_distance, found.y_distance, found.x_index, found.y_index

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, v_x: Tensor, v_y: Tensor, *_: Any) -> tuple[Any, ...]:  # type: ignore[override]
        x, y, x_index, y_index = ctx.saved_tensors
        grad_x, grad_y = GRADIENTS[ctx.impl](x, y, Nearest(v_x, v_y, x_index, y_index), v_x, v_y)
        return grad_x.to(x.dtype), grad_y.to(y.dtype), None, None, None


@torch.library.custom_op("hotlap::chamfer", mutates_args=())
def _chamfer(
    x: Tensor, y: Tensor, x_lengths: Tensor | None, y_lengths: Tensor | None, impl: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    found = SEARCHES[impl](x, y, x_lengths, y_lengths)
    return found.x_distance, found.y_distance, found.x_index, found.y_index


@_chamfer.register_fake
def _(
    x: Tensor, y: Tensor, x_lengths: Tensor | None, y_lengths: Tensor | None, impl: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    distances = [t.new_empty(t.shape[:2], dtype=torch.float32) for t in (x, y)]
    indices = [t.new_empty(t.shape[:2], dtype=torch.int64) for t in (x, y)]
    return distances[0], distances[1], indices[0], indices[1]


@torch.library.custom_op("hotlap::chamfer_backward", mutates_args=())
def _chamfer_backward(
    x: Tensor, y: Tensor, x_index: Tensor, y_index: Tensor, v_x: Tensor, v_y: Tensor, impl: str
) -> tuple[Tensor, Tensor]:
    return GRADIENTS[impl](x, y, Nearest(v_x, v_y, x_index, y_index), v_x, v_y)


@_chamfer_backward.register_fake
def _(
    x: Tensor, y: Tensor, x_index: Tensor, y_index: Tensor, v_x: Tensor, v_y: Tensor, impl: str
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, dtype=torch.float32), torch.empty_like(y, dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(inputs[0], inputs[1], output[2], output[3])
    ctx.mark_non_differentiable(output[2], output[3])
    ctx.impl = inputs[4]


def _differentiate(ctx: Any, v_x: Tensor, v_y: Tensor, *_: Any) -> tuple[Any, ...]:
    x, y, x_index, y_index = ctx.saved_tensors
    grad_x, grad_y = _chamfer_backward(x, y, x_index, y_index, v_x, v_y, ctx.impl)
    return grad_x.to(x.dtype), grad_y.to(y.dtype), None, None, None


_chamfer.register_autograd(_differentiate, setup_context=_keep)
