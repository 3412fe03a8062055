"""Pooling of several views by Triton programs, one launch for each map."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hotlap.kernels.images import why_not_triton

why_not = why_not_triton

NUMBERS, NUMBERS_BACK = 2048, 1024
"""Points times channels of a program, forward and backward: 16 or 8 numbers of each kind for each of 128 threads."""
MAX_CHANNELS = 128
"""Of a program."""


def _by_map(
    maps: Sequence[Tensor], pixels: Tensor, pitch: int, size: int, bilinear: bool, compat: bool, numbers: int
) -> Iterator[tuple[tuple[int, int, int], Tensor, list[float], dict[str, Any]]]:
    """For each map the grid, the map with its channels side by side, numbers and settings."""
    objects, views, points = pixels.shape[:3]
    total, offset = sum(image.shape[1] for image in maps), 0
    for image in maps:
        channels, height, width = image.shape[1:]
        block_c = max(4, min(MAX_CHANNELS, 1 << (channels - 1).bit_length()))
        block_p = max(16, numbers // block_c) if image.is_cuda else 16  # interpreted, padding costs as much
        grid = (-(-points // block_p), -(-channels // block_c), objects)
        scales = [width / size, height / size, float(size - 1)]
        sizes = [points, width, height, channels, *scales, pitch, total, offset]
        divisor = max(1, size // height) if compat else 1
        settings = {"VIEWS": views, "DIVISOR": divisor, "BILINEAR": bilinear, "BLOCK_P": block_p, "BLOCK_C": block_c}
        yield grid, image.contiguous(memory_format=torch.channels_last), sizes, settings
        offset += channels


def pool(maps: Sequence[Tensor], pixels: Tensor, size: int, bilinear: bool, compat: bool, out: Tensor) -> None:
    """Fills the first 3 sum(C) columns of ``out`` [B, N, D]."""
    pixels = pixels.float().contiguous()
    for grid, image, sizes, settings in _by_map(maps, pixels, out.shape[2], size, bilinear, compat, NUMBERS):
        _kernels()["fwd"][grid](image, pixels, out, *sizes, **settings)


def unpool(
    maps: Sequence[Tensor], pixels: Tensor, v_out: Tensor, size: int, bilinear: bool, compat: bool,
    v_maps: Sequence[Tensor], v_pixels: Tensor,
) -> None:  # fmt: skip
    """Adds to the gradients by the maps, each [B * V, H, W, C], and by the pixels; an empty one is not wanted."""
    pixels, v_out = pixels.float().contiguous(), v_out.contiguous()
    rows = _by_map(maps, pixels, v_out.shape[2], size, bilinear, compat, NUMBERS_BACK)
    for (grid, image, sizes, settings), v_map in zip(rows, v_maps, strict=True):
        wanted = {"WANT_MAP": v_map.numel() > 0, "WANT_PIXELS": v_pixels.numel() > 0}
        _kernels()["bwd"][grid](image, pixels, v_out, v_map, v_pixels, *sizes, **settings, **wanted)


@functools.cache
def _kernels() -> dict[str, Any]:
    from hotlap.kernels.view_pool.triton_kernels import view_pool_bwd_kernel, view_pool_fwd_kernel

    return {"fwd": view_pool_fwd_kernel, "bwd": view_pool_bwd_kernel}
