"""What dropout by samples computes, in plain torch: the truth that every implementation is held to."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ODD = -1640531527
"""2**32 divided by the golden ratio, as a signed number: consecutive integers land far apart."""


def place_numbers(start: int, width: int, device: torch.device) -> Tensor:
    """[width] int32, a number for each element of a sample."""
    return start + torch.arange(width, dtype=torch.int32, device=device) * ODD


Places = Callable[[int, int, torch.device], Tensor]
"""From start, width and device to what :func:`place_numbers` gives."""


def threshold_of(p: float) -> int:
    """The least hash, a number of 32 bits with a sign, that keeps its element."""
    return min(round(p * 2**32), 2**32 - 1) - 2**31


def mask_shape(shape: torch.Size, by_channel: bool) -> list[int]:
    """Of the mask, which is broadcast to an input of ``shape``."""
    return [*shape[:2], *[1] * (len(shape) - 2)] if by_channel else list(shape)


def keyed_dropout_ref(
    x: Tensor,  # [R, ...]
    seeds: Tensor,  # [N] int32, one for each sample; R is a multiple of N
    start: int,
    p: float,
    *,
    by_channel: bool = False,
    places: Places = place_numbers,
) -> Tensor:
    """``x`` without the elements that the samples' seeds give up, a share ``p`` of them, and the rest over 1 - p.

    Rows may be samples, or several to a sample, as where [n, time, width] was folded to [n * time, width]. With
    ``by_channel`` whole channels go, the second dimension. ``start`` is a number of 32 bits with a sign that tells
    layers and calls apart; ``places`` may keep what it made. Differentiable in ``x``. What is not finite and given up
    becomes NaN, as in torch's own dropout.
    """
    shape = mask_shape(x.shape, by_channel)
    width = shape[0] // max(1, len(seeds))
    for size in shape[1:]:
        width *= size
    # 32-bit integers: products wrap around, and the masks keep the shifts from bringing in sign bits.
    h = seeds[:, None] + places(start, width, x.device)
    h = (h ^ ((h >> 16) & 0xFFFF)) * 0x7FEB352D
    h = (h ^ ((h >> 15) & 0x1FFFF)) * -2073254261
    return x * (h >= threshold_of(p)).view(shape) * (1 / (1 - p))
