"""Features of points from several views, by the first implementation that can run here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hotlap.base.errors import ShapeError
from hotlap.base.shapes import bind_dims
from hotlap.kernels.choose import Choice, choose
from hotlap.kernels.view_pool import cpu, triton
from hotlap.kernels.view_pool.reference import TAIL, view_pool_ref


def _always(device: torch.device, dtype: torch.dtype) -> str:
    return ""


WHY_NOT: dict[str, Callable[[torch.device, torch.dtype], str]] = {
    "triton": triton.why_not,
    "cpu": cpu.why_not,
    "reference": _always,
}
POOLS: dict[str, Callable[..., None]] = {"triton": triton.pool, "cpu": cpu.pool}
UNPOOLS: dict[str, Callable[..., None]] = {"triton": triton.unpool, "cpu": cpu.unpool}
IMPLS = tuple(WHY_NOT)
"""The implementations, those that are preferred first."""


def view_pool(
    maps: Sequence[Tensor],  # each [B * V, C, H, W]
    pixels: Tensor,  # [B, V, N, 2] column and row, in pixels of a picture of ``size``
    points: Tensor | None = None,  # [B, N, 3]
    *,
    size: int = 224,
    bilinear: bool = True,
    compat: bool = False,
    impl: str = "auto",
) -> Tensor:
    """What the maps hold at the pixels, as maximum, mean and deviation over the views [B, N, 3 sum(C)], maps in order.

    ``points`` come behind as eight more columns, five of them 0: a row that tensor cores can read. Pixels outside the
    picture are moved to its border. Without ``bilinear`` the pixel above and to the left is taken. ``compat`` reads the
    map of view v // (size // H), as the published network does by mistake. Differentiable in the maps, the points and,
    if bilinear, the pixels; among equal views the first has the gradient of the maximum.
    """
    if not maps:
        raise ShapeError("maps is empty", expected="at least one map [B * V, C, H, W]")
    dims = bind_dims(pixels=(pixels, "B V N 2"))
    for number, image in enumerate(maps):
        bind_dims(**{f"maps[{number}]": (image, f"{dims['B'] * dims['V']} C H W")})
    if points is not None:
        bind_dims(pixels=(pixels, "B V N 2"), points=(points, "B N 3"))
    name = _pick(impl, pixels.device, maps[0].dtype)
    if name == "reference" or pixels.numel() == 0:
        return view_pool_ref(maps, pixels, points, size=size, bilinear=bilinear, compat=compat)
    return _view_pool(list(maps), pixels, points, size, bilinear, compat, name)


def view_pool_choice(device: torch.device, dtype: torch.dtype, impl: str = "auto") -> Choice:
    """The implementation that such maps get, and the reasons against those before it."""
    return choose({name: partial(ask, device, dtype) for name, ask in WHY_NOT.items()}, impl)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _pick(impl: str, device: torch.device, dtype: torch.dtype) -> str:
    return view_pool_choice(device, dtype, impl).impl


def _result(maps: Sequence[Tensor], pixels: Tensor, points: Tensor | None) -> Tensor:
    columns = 3 * sum(image.shape[1] for image in maps) + (0 if points is None else TAIL)
    return maps[0].new_empty([pixels.shape[0], pixels.shape[2], columns])


@torch.library.custom_op("hotlap::view_pool", mutates_args=())
def _view_pool(
    maps: Sequence[Tensor], pixels: Tensor, points: Tensor | None, size: int, bilinear: bool, compat: bool, impl: str
) -> Tensor:
    out = _result(maps, pixels, points)
    POOLS[impl](maps, pixels, size, bilinear, compat, out)
    if points is not None:
        out[..., -TAIL : 3 - TAIL] = points
        out[..., 3 - TAIL :] = 0
    return out


@_view_pool.register_fake
def _(
    maps: Sequence[Tensor], pixels: Tensor, points: Tensor | None, size: int, bilinear: bool, compat: bool, impl: str
) -> Tensor:
    return _result(maps, pixels, points)


@torch.library.custom_op("hotlap::view_unpool", mutates_args=())
def _view_unpool(
    maps: Sequence[Tensor], pixels: Tensor, v_out: Tensor, size: int, bilinear: bool, compat: bool, impl: str,
    want_maps: bool, want_pixels: bool,
) -> list[Tensor]:  # fmt: skip
    """The gradients by the pixels and by the maps in float32, those not wanted empty."""
    made = _gradients(maps, pixels, want_maps, want_pixels or impl == "cpu", torch.zeros)
    beside = [image.permute(0, 2, 3, 1) if want_maps else image for image in made[1:]]
    UNPOOLS[impl](maps, pixels, v_out, size, bilinear, compat, beside, made[0])
    return made


@_view_unpool.register_fake
def _(
    maps: Sequence[Tensor], pixels: Tensor, v_out: Tensor, size: int, bilinear: bool, compat: bool, impl: str,
    want_maps: bool, want_pixels: bool,
) -> list[Tensor]:  # fmt: skip
    return _gradients(maps, pixels, want_maps, want_pixels or impl == "cpu", torch.empty)


def _gradients(
    maps: Sequence[Tensor], pixels: Tensor, want_maps: bool, want_pixels: bool, make: Callable[..., Tensor]
) -> list[Tensor]:
    def like(tensor: Tensor, wanted: bool) -> Tensor:
        return make(tensor.shape if wanted else [0], dtype=torch.float32, device=tensor.device)

    found = [like(pixels, want_pixels)]
    for image in maps:
        b, c, h, w = image.shape
        shape = [b, h, w, c] if want_maps else [0]
        made = make(shape, dtype=torch.float32, device=image.device)
        found.append(made.permute(0, 3, 1, 2) if want_maps else made)
    return found


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    maps, pixels, points, *ctx.settings = inputs
    ctx.save_for_backward(pixels, *maps)
    ctx.points = None if points is None else points.dtype


def _differentiate(ctx: Any, v_out: Tensor) -> tuple[Any, ...]:
    pixels, *maps = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    want_maps = any(wanted[0]) if isinstance(wanted[0], (list, tuple)) else bool(wanted[0])
    want_maps = want_maps or ctx.settings[-1] == "cpu"
    v_pixels, *v_maps = _view_unpool(maps, pixels, v_out, *ctx.settings, want_maps, wanted[1])
    by_maps = [v.to(image.dtype) if want_maps else None for v, image in zip(v_maps, maps, strict=True)]
    by_points = None if ctx.points is None else v_out[..., -TAIL : 3 - TAIL].to(ctx.points)
    return by_maps, v_pixels.to(pixels.dtype) if wanted[1] else None, by_points, None, None, None, None


_view_pool.register_autograd(_differentiate, setup_context=_keep)
