"""Small maps enlarged and added to a large one, by the first implementation that can run here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hotlap.base.shapes import bind_dims
from hotlap.device.layout import format_of
from hotlap.kernels.choose import Choice, choose
from hotlap.kernels.enlarge import triton
from hotlap.kernels.enlarge.reference import enlarge_ref


def _always(device: torch.device, dtype: torch.dtype) -> str:
    return ""


WHY_NOT: dict[str, Callable[[torch.device, torch.dtype], str]] = {"triton": triton.why_not, "reference": _always}
IMPLS = tuple(WHY_NOT)
"""The implementations, those that are preferred first."""


def enlarge(base: Tensor, parts: Sequence[Tensor], *, relu: bool = False, impl: str = "auto") -> Tensor:
    """relu(base + the parts [n, C, h, w], enlarged bilinearly to its size) [n, C, H, W]; corners lie on corners.

    In the number format and layout of the base. Up to three parts, of any sizes. Differentiable in base and parts.
    """
    bind_dims(base=(base, "n C H W"))
    images, channels = base.shape[:2]
    for number, part in enumerate(parts):
        bind_dims(**{f"parts[{number}]": (part, f"{images} {channels} h w")})
    no_work = base.numel() == 0 or not parts or len(parts) > triton.MOST_PARTS
    if _pick(impl, base.device, base.dtype) == "reference" or no_work:
        return enlarge_ref(base, parts, relu=relu)
    layout = format_of(base)
    alike = [part.to(base.dtype).contiguous(memory_format=layout) for part in parts]
    return _enlarge(base.contiguous(memory_format=layout), alike, relu)


def enlarge_choice(device: torch.device, dtype: torch.dtype, impl: str = "auto") -> Choice:
    """The implementation that such tensors get, and the reasons against those before it."""
    return choose({name: partial(ask, device, dtype) for name, ask in WHY_NOT.items()}, impl)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _pick(impl: str, device: torch.device, dtype: torch.dtype) -> str:
    return enlarge_choice(device, dtype, impl).impl


@torch.library.custom_op("hotlap::enlarge", mutates_args=())
def _enlarge(base: Tensor, parts: Sequence[Tensor], relu: bool) -> Tensor:
    out = torch.empty_like(base)
    triton.enlarge(base, parts, relu, out)
    return out


@_enlarge.register_fake
def _(base: Tensor, parts: Sequence[Tensor], relu: bool) -> Tensor:
    return torch.empty_like(base)


def _keep(ctx: Any, inputs: tuple[Tensor, Sequence[Tensor], bool], output: Tensor) -> None:
    base, parts, relu = inputs
    ctx.save_for_backward(*([output] if relu else []))
    ctx.sizes = [part.shape for part in parts]
    ctx.large, ctx.type = base.shape[-2:], base.dtype


def _differentiate(ctx: Any, v_out: Tensor) -> tuple[Tensor, list[Tensor], None]:
    v = torch.where(ctx.saved_tensors[0] > 0, v_out, 0) if ctx.saved_tensors else v_out
    # torch's own way back adds up in float32 and, for a map of one pixel, divides nothing by nothing.
    wide, back = v.float(), torch.ops.aten.upsample_bilinear2d_backward
    return v, [back(wide, ctx.large, size, True).to(ctx.type) for size in ctx.sizes], None


_enlarge.register_autograd(_differentiate, setup_context=_keep)
