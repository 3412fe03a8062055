"""Maps enlarged and added by a Triton program for each block of a row of pixels."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from hotlap.kernels.images import WARPS, why_not_triton

why_not = why_not_triton

NUMBERS = 2048
"""Pixels of a row times channels that a program writes."""
CHANNELS = 64
"""Of them, at most."""
MOST_PARTS = 3


def enlarge(base: Tensor, parts: Sequence[Tensor], relu: bool, out: Tensor) -> None:
    """Fills ``out`` [n, C, H, W]; all lie alike, in torch's usual order or with the channels of a pixel together."""
    images, channels, height, width = base.shape
    last = not base.is_contiguous()
    block_c = min(CHANNELS, 1 << (channels - 1).bit_length()) if last else 1
    block_w = max(1, min((NUMBERS if base.is_cuda else 256) // block_c, 1 << (width - 1).bit_length()))
    groups = -(-channels // block_c)
    grid = (-(-width // block_w), height, images * groups)
    given: list[Any] = []
    for number in range(MOST_PARTS):
        part = parts[number] if number < len(parts) else base
        given += [part, *part.shape[-2:]]
    settings = {"LAST": last, "BY_EIGHT": channels % 8 == 0, "BLOCK_W": block_w, "BLOCK_C": block_c}
    flags = {"PARTS": len(parts), "RELU": relu}
    _kernel()[grid](base, *given, out, height, width, channels, groups, **flags, **settings, num_warps=WARPS // 2)


@functools.cache
def _kernel() -> Any:
    from hotlap.kernels.enlarge.triton_kernels import enlarge_fwd_kernel

    return enlarge_fwd_kernel
