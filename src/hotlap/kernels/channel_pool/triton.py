"""Mean and maximum over channels by a Triton program for each block of pixels."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor

from hotlap.kernels.images import WARPS, why_not_triton

why_not = why_not_triton

NUMBERS = 4096
"""Pixels times channels that a program has in hand at a time."""
CHANNELS = 64
"""Of them, at most."""


def pool(x: Tensor, out: Tensor) -> None:
    """Fills ``out`` [n, 2, H, W], which lies as x does."""
    images, channels, height, width = x.shape
    last = not x.is_contiguous()
    block_c = min(CHANNELS, 1 << (channels - 1).bit_length()) if last else 1
    block_p = (NUMBERS if x.is_cuda else 256) // block_c
    grid = (-(-height * width // block_p), images)
    settings = {"LAST": last, "BY_EIGHT": channels % 8 == 0, "BLOCK_P": block_p, "BLOCK_C": block_c}
    _kernel()[grid](x, out, height * width, channels, **settings, num_warps=WARPS)


@functools.cache
def _kernel() -> Any:
    from hotlap.kernels.channel_pool.triton_kernels import channel_pool_fwd_kernel

    return channel_pool_fwd_kernel
