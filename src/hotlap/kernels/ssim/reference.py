"""L1 and SSIM of two pictures in plain torch: the truth that every implementation is held to."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

REACH, SIGMA = 5, 1.5
"""The window has 11 x 11 pixels with normal weights."""
C1, C2 = 0.01**2, 0.03**2


def l1_ssim_ref(
    image: Tensor,  # [B, H, W, C]
    target: Tensor,  # [B, H, W, C], or with alpha [B, H, W, C + 1]; floating point, or uint8 as 255 times the number
    ssim_weight: float = 0.2,
    mask: Tensor | None = None,  # [B, H, W]
    background: Tensor | None = None,  # [C] or [B, C]
) -> Tensor:
    """The loss (1 - w) L1 + w (1 - SSIM) as one number, the mean over all pixels and channels.

    A target with alpha is laid over the background (black if there is none), and both pictures are multiplied by the
    mask. Outside the pictures is 0. Differentiable in the image.
    """
    x, y = compared(image, target, mask, background)
    l1 = (x - y).abs().mean()
    return (1 - ssim_weight) * l1 + ssim_weight * (1 - ssim_map_ref(x, y).mean())


def compared(
    image: Tensor, target: Tensor, mask: Tensor | None = None, background: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The two pictures [B, H, W, C] that are compared, in the image's number format."""
    channels = image.shape[-1]
    y = target.to(image.dtype) / (255 if target.dtype == torch.uint8 else 1)
    if target.shape[-1] == channels + 1:
        y, alpha = y[..., :channels], y[..., channels:]
        behind = image.new_zeros(channels) if background is None else background.to(image.dtype)
        y = y * alpha + (1 - alpha) * behind.view(-1, 1, 1, channels)
    if mask is None:
        return image, y
    weight = mask.to(image.dtype)[..., None]
    return image * weight, y * weight


def ssim_map_ref(x: Tensor, y: Tensor) -> Tensor:  # [B, H, W, C] each
    """The structural similarity at every pixel and channel [B, H, W, C]."""
    x, y = x.movedim(-1, 1), y.movedim(-1, 1)
    mean_x, mean_y = _windowed(x), _windowed(y)
    var_x, var_y = _windowed(x * x) - mean_x**2, _windowed(y * y) - mean_y**2
    covariance = _windowed(x * y) - mean_x * mean_y
    above = (2 * mean_x * mean_y + C1) * (2 * covariance + C2)
    below = (mean_x**2 + mean_y**2 + C1) * (var_x + var_y + C2)
    return (above / below).movedim(1, -1)


def _windowed(x: Tensor) -> Tensor:  # [B, C, H, W]
    """The weighted mean around every pixel; outside the picture is 0."""
    offsets = torch.arange(-REACH, REACH + 1, dtype=x.dtype, device=x.device)
    weights = torch.exp(-(offsets**2) / (2 * SIGMA**2))
    weights = weights / weights.sum()
    kernel = weights.outer(weights).expand(x.shape[1], 1, -1, -1)
    return functional.conv2d(x, kernel, padding=REACH, groups=x.shape[1])
