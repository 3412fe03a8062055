"""The loss of splatting and its gradient, L1 and SSIM in one pass, by the first implementation that can run here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hotlap.base.errors import ConfigError, ShapeError
from hotlap.base.shapes import bind_dims
from hotlap.kernels.choose import Choice, choose
from hotlap.kernels.ssim import cpu, cuda
from hotlap.kernels.ssim.buffers import Buffers, allocate, result_type
from hotlap.kernels.ssim.reference import l1_ssim_ref


def _always(device: torch.device, image: torch.dtype, target: torch.dtype, channels: int) -> str:
    return ""


WHY_NOT: dict[str, Callable[[torch.device, torch.dtype, torch.dtype, int], str]] = {
    "cuda": cuda.why_not,
    "cpu": cpu.why_not,
    "reference": _always,
}
RUNS: dict[str, Callable[[Tensor, Tensor, float, Tensor | None, Tensor | None, Buffers], None]] = {
    "cuda": cuda.run,
    "cpu": cpu.run,
}
NUM_SUMS: dict[str, Callable[[torch.Size, torch.device], int]] = {"cuda": cuda.num_sums, "cpu": cpu.num_sums}
IMPLS = tuple(WHY_NOT)
"""The implementations, those that are preferred first."""


def l1_ssim(
    image: Tensor,  # [B, H, W, C]
    target: Tensor,  # [B, H, W, C], or with alpha [B, H, W, C + 1]; floating point, or uint8 as 255 times the number
    *,
    ssim_weight: float = 0.2,
    mask: Tensor | None = None,  # [B, H, W]
    background: Tensor | None = None,  # [C] or [B, C]
    impl: str = "auto",
) -> Tensor:
    """The loss (1 - w) L1 + w (1 - SSIM) as one number on the device, the mean over all pixels and channels.

    The window of SSIM has 11 x 11 pixels and standard deviation 1.5; outside the pictures is 0. A target with alpha is
    laid over the background (black if there is none). Both pictures are multiplied by the mask, so a masked pixel
    weighs nothing; the mean is still that of all pixels. Differentiable in the image.
    """
    name = _checked(image, target, ssim_weight, mask, background, impl)
    if name == "reference":
        return l1_ssim_ref(image.to(result_type(image.dtype)), target, ssim_weight, mask, background)
    wanted = image.requires_grad and torch.is_grad_enabled()
    return _l1_ssim(image, target, mask, background, ssim_weight, name, wanted)[0]


def ssim(
    image: Tensor,  # [B, H, W, C]
    target: Tensor,  # as for l1_ssim
    *,
    mask: Tensor | None = None,  # [B, H, W]
    background: Tensor | None = None,  # [C] or [B, C]
    impl: str = "auto",
) -> Tensor:
    """The mean structural similarity as one number on the device, 1 for equal pictures. Differentiable in the image."""
    return 1 - l1_ssim(image, target, ssim_weight=1.0, mask=mask, background=background, impl=impl)


def l1_ssim_grad(
    image: Tensor,  # [B, H, W, C]
    target: Tensor,  # as for l1_ssim
    *,
    ssim_weight: float = 0.2,
    mask: Tensor | None = None,  # [B, H, W]; float32 is read as it is, other types are converted
    background: Tensor | None = None,  # [C] or [B, C]
    out: Buffers | None = None,
    impl: str = "auto",
) -> tuple[Tensor, Tensor]:
    """The loss of :func:`l1_ssim` and its gradient by the image [B, H, W, C], in float32 (float64 for float64).

    With ``out`` of :func:`make_buffers` nothing is allocated and the results are its tensors, so that a CUDA graph can
    replay the call. It records nothing for autograd.
    """
    name = _checked(image, target, ssim_weight, mask, background, impl)
    if out is None:
        out = make_buffers(image, target, impl=name)
    elif out.grad.shape != image.shape:
        raise ShapeError(f"out.grad must be {list(image.shape)} like the image, got {list(out.grad.shape)}")
    if name != "reference":
        RUNS[name](image, target, ssim_weight, mask, background, out)
        return out.loss, out.grad
    with torch.enable_grad():
        leaf = image.detach().to(out.loss.dtype).requires_grad_()
        loss = l1_ssim_ref(leaf, target, ssim_weight, mask, background)
        out.grad.copy_(torch.autograd.grad(loss, leaf)[0])
    out.loss.copy_(loss.detach())
    return out.loss, out.grad


def make_buffers(image: Tensor, target: Tensor, *, with_grad: bool = True, impl: str = "auto") -> Buffers:
    """The memory that :func:`l1_ssim_grad` needs for such pictures."""
    name = l1_ssim_choice(image, target, impl).impl
    return allocate(image, NUM_SUMS[name](image.shape, image.device) if name in NUM_SUMS else 0, with_grad)


def l1_ssim_choice(image: Tensor, target: Tensor, impl: str = "auto") -> Choice:
    """The implementation that such pictures get, and the reasons against those before it."""
    return _choice(impl, image.device, image.dtype, target.dtype, image.shape[-1])


def _choice(impl: str, device: torch.device, image: torch.dtype, target: torch.dtype, channels: int) -> Choice:
    return choose({name: partial(ask, device, image, target, channels) for name, ask in WHY_NOT.items()}, impl)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _pick(impl: str, device: torch.device, image: torch.dtype, target: torch.dtype, channels: int) -> str:
    return _choice(impl, device, image, target, channels).impl


def _checked(
    image: Tensor, target: Tensor, weight: float, mask: Tensor | None, background: Tensor | None, impl: str
) -> str:
    """The implementation to run, once the tensors fit each other."""
    named: dict[str, tuple[Any, str]] = {"image": (image, "B H W C")}
    alpha = image.dim() == 4 and target.dim() == 4 and target.shape[-1] == image.shape[-1] + 1
    named["target"] = (target, f"B H W {image.shape[-1] + 1}" if alpha else "B H W C")
    if mask is not None:
        named["mask"] = (mask, "B H W")
    if background is not None:
        named["background"] = (background, "B C" if background.dim() == 2 else "C")
    bind_dims(**named)
    if background is not None and not alpha:
        raise ShapeError(
            f"background is given and target {list(target.shape)} has no alpha",
            expected=f"{image.shape[-1] + 1} channels, alpha the last",
        )
    if not 0 <= weight <= 1:
        raise ConfigError(f"ssim_weight = {weight:g} is not valid", expected="a number from 0 to 1")
    if image.numel() == 0:
        raise ShapeError(f"image {list(image.shape)} has no pixels", expected="at least one")
    return _pick(impl, image.device, image.dtype, target.dtype, image.shape[-1])


@torch.library.custom_op("hotlap::l1_ssim", mutates_args=())
def _l1_ssim(
    image: Tensor,
    target: Tensor,
    mask: Tensor | None,
    background: Tensor | None,
    ssim_weight: float,
    impl: str,
    with_grad: bool,
) -> tuple[Tensor, Tensor]:
    """The loss and its gradient by the image, which is empty unless wanted."""
    out = allocate(image, NUM_SUMS[impl](image.shape, image.device), with_grad)
    RUNS[impl](image, target, ssim_weight, mask, background, out)
    return out.loss, out.grad


@_l1_ssim.register_fake
def _(
    image: Tensor,
    target: Tensor,
    mask: Tensor | None,
    background: Tensor | None,
    ssim_weight: float,
    impl: str,
    with_grad: bool,
) -> tuple[Tensor, Tensor]:
    kind = result_type(image.dtype)
    return image.new_empty([], dtype=kind), image.new_empty(image.shape if with_grad else [0], dtype=kind)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.dtype = inputs[0].dtype


def _differentiate(ctx: Any, v_loss: Tensor, v_grad: Any) -> tuple[Any, ...]:
    (grad,) = ctx.saved_tensors
    return (v_loss * grad).to(ctx.dtype), None, None, None, None, None, None


_l1_ssim.register_autograd(_differentiate, setup_context=_keep)
