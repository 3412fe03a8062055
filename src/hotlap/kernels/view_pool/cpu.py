"""Pooling of several views on the CPU, compiled by numba."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotlap.kernels.threads import in_threads


def why_not(device: torch.device, dtype: torch.dtype) -> str:
    """Why this implementation cannot run on such maps; '' if it can."""
    if device.type != "cpu":
        return f"the tensors are on {device.type}"
    if dtype != torch.float32:
        return f"{str(dtype).removeprefix('torch.')} is not float32"
    return "" if find_spec("numba") is not None else "numba is not installed"


def _by_map(maps: Sequence[Tensor], pixels: Tensor, size: int, bilinear: bool, compat: bool) -> Iterator[list[Any]]:
    """For each map what its kernel is told."""
    total, offset = sum(image.shape[1] for image in maps), 0
    places = pixels.detach().float().contiguous().numpy()
    for image in maps:
        channels, height, width = image.shape[1:]
        beside = image.detach().contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1).numpy()
        scales = np.array([width / size, height / size], np.float32)
        divisor = max(1, size // height) if compat else 1
        yield [beside, places, scales, np.float32(size - 1), bilinear, divisor, total, offset]
        offset += channels


def pool(maps: Sequence[Tensor], pixels: Tensor, size: int, bilinear: bool, compat: bool, out: Tensor) -> None:
    """Fills the first 3 sum(C) columns of ``out`` [B, N, D]."""
    from hotlap.kernels.view_pool.cpu_kernels import pool_fwd_kernel

    for given in _by_map(maps, pixels, size, bilinear, compat):
        in_threads(pool_fwd_kernel, out.shape[0] * out.shape[1], *given, out.numpy())


def unpool(
    maps: Sequence[Tensor], pixels: Tensor, v_out: Tensor, size: int, bilinear: bool, compat: bool,
    v_maps: Sequence[Tensor], v_pixels: Tensor,
) -> None:  # fmt: skip
    """Adds to the gradients by the maps, each [B * V, H, W, C], and by the pixels."""
    from hotlap.kernels.view_pool.cpu_kernels import pool_bwd_kernel

    rows = v_out.contiguous().numpy()
    for given, v_map in zip(_by_map(maps, pixels, size, bilinear, compat), v_maps, strict=True):
        in_threads(pool_bwd_kernel, len(v_out), *given, rows, v_map.numpy(), v_pixels.numpy())
