"""Pooling of several views in plain torch: the truth that every implementation is held to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

VARIANCE_FLOOR = 1e-6
"""Added to the variance over the views, so that its root has a slope where the views agree."""
TAIL = 8
"""Columns that the points add: three coordinates, and zeros up to a row length that tensor cores read."""


def view_pool_ref(
    maps: Sequence[Tensor],  # each [B * V, C, H, W]
    pixels: Tensor,  # [B, V, N, 2] column and row, in pixels of a picture of ``size``
    points: Tensor | None = None,  # [B, N, 3]
    *,
    size: int = 224,
    bilinear: bool = True,
    compat: bool = False,
) -> Tensor:
    """What the maps hold at the pixels, as maximum, mean and deviation over the views [B, N, 3 sum(C)], maps in order.

    ``points`` come behind as eight more columns, five of them 0. Pixels outside the picture are moved to its border.
    Without ``bilinear`` the pixel above and to the left is taken, and there is no gradient by the pixels. ``compat``
    reads the map of view v // (size // H), as the published network does by mistake. The result has the maps' format.
    """
    sampled = torch.cat([_sample(image, pixels, size, bilinear, compat) for image in maps], 2)  # [B, V, sum(C), N]
    mean = sampled.mean(1)
    deviation = ((sampled - mean[:, None]).square().mean(1) + VARIANCE_FLOOR).sqrt()
    pooled = torch.cat([sampled.max(1).values, mean, deviation], 1).transpose(1, 2).to(maps[0].dtype)
    if points is None:
        return pooled
    return torch.cat([pooled, F.pad(points, (0, TAIL - 3)).to(pooled.dtype)], 2)


def _sample(image: Tensor, pixels: Tensor, size: int, bilinear: bool, compat: bool) -> Tensor:
    """[B, V, C, N] in the number format of the pixels."""
    num_objects, num_views = pixels.shape[:2]
    _, channels, height, width = image.shape
    image = image.to(pixels.dtype).reshape(num_objects, num_views, channels, height, width)
    if compat:
        image = image[:, [view // max(1, size // height) for view in range(num_views)]]
    column, row = (pixels.nan_to_num().clamp(0, size - 1)).unbind(-1)
    column, row = column * (width / size), row * (height / size)
    if not bilinear:
        index = (row.long() * width + column.long())[:, :, None].expand(-1, -1, channels, -1)
        return image.flatten(3).gather(3, index)
    grid = torch.stack([2 * column / max(1, width - 1) - 1, 2 * row / max(1, height - 1) - 1], -1)
    found = F.grid_sample(
        image.flatten(0, 1), grid.flatten(0, 1)[:, :, None], padding_mode="border", align_corners=True
    )
    return found[..., 0].reshape(num_objects, num_views, channels, -1)
