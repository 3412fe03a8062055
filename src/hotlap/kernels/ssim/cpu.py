"""L1 and SSIM with their gradient on the CPU, compiled by numba."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from hotlap.kernels.ssim.buffers import Buffers
from hotlap.kernels.ssim.reference import C1, C2, REACH, SIGMA, compared
from hotlap.kernels.threads import in_threads

ROWS = 32
"""Of a band; it reads ten more than it has results."""


def why_not(device: torch.device, image: torch.dtype, target: torch.dtype, channels: int) -> str:
    """Why this implementation cannot compare such pictures; '' if it can."""
    if device.type != "cpu":
        return f"the tensors are on {device.type}"
    if image == torch.float64:
        return "it computes in float32"
    return "" if find_spec("numba") is not None else "numba is not installed"


def num_sums(shape: torch.Size, device: torch.device) -> int:
    """How many pairs of sums the first pass leaves for such images."""
    return shape[0] * -(-shape[1] // ROWS)


def run(
    image: Tensor,  # [B, H, W, C]
    target: Tensor,  # [B, H, W, C] or [B, H, W, C + 1]
    ssim_weight: float,
    mask: Tensor | None,  # [B, H, W]
    background: Tensor | None,  # [C] or [B, C]
    out: Buffers,
) -> None:
    """Fills ``out.loss`` and, unless it is empty, ``out.grad``."""
    from hotlap.kernels.ssim import cpu_kernels

    kind = out.loss.dtype
    pictures = compared(image.detach().to(kind), target, mask, background)
    x, y = (picture.contiguous().flatten(2).numpy() for picture in pictures)
    number = x.dtype.type
    offsets = np.arange(-REACH, 1)
    weights = np.exp(-(offsets**2) / (2 * SIGMA**2))
    weights = (weights / (2 * weights.sum() - 1)).astype(number)
    constants = np.array([2 * C1, 2 * C2, 2, 1], number)
    slopes = out.slopes.flatten(3).numpy() if out.grad.numel() else np.empty((3, len(x), 0, 0), number)
    num_bands = len(out.sums)
    in_threads(
        cpu_kernels.ssim_fwd_kernel, num_bands, x, y, image.shape[3], weights, constants, ROWS, slopes, out.sums.numpy()
    )
    count = image.numel()
    l1, similarity = (out.sums.double().sum(0) / count).unbind()
    out.loss.copy_((1 - ssim_weight) * l1 + ssim_weight * (1 - similarity))
    if out.grad.numel():
        shares = np.array([(1 - ssim_weight) / count, ssim_weight / count, 2, 0], number)
        grad = out.grad.flatten(2).numpy()
        in_threads(cpu_kernels.ssim_bwd_kernel, num_bands, x, y, image.shape[3], weights, shares, ROWS, slopes, grad)
        if mask is not None:
            out.grad.mul_(mask.to(kind)[..., None])
