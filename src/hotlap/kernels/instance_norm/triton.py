"""Instance norms by Triton programs: one pass that sums, one that writes; the same two for the gradients."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hotlap.kernels.images import WARPS, why_not_triton

NUMBERS = 4096
"""Pixels times channels that a program has in hand at a time: 16 for each of 256 threads."""
CHANNELS = 64
"""Of a program, where the channels of a pixel lie side by side."""
MOST_PARTS = 64
"""Of the sums of one channel: each program that writes adds them up anew."""
LEAST_BLOCKS = 4
"""Of numbers in a part. How an image is cut up does not depend on how many there are: it is the same in any batch."""
WRITERS = 32
"""Programs that write an image's block of channels, if each then has from two to MOST_WRITTEN blocks of numbers."""
MOST_WRITTEN = 16
"""So many that adding up parts is little beside them."""


why_not = why_not_triton


@dataclass(frozen=True)
class Plan:
    """How images of one shape and layout are cut up among programs."""

    sizes: tuple[int, int]
    """Pixels and channels of an image."""
    part: int
    """Pixels that one program sums."""
    parts: int
    """Such programs for each channel."""
    written: int
    """Pixels that one program writes."""
    groups: tuple[int, int]
    """Blocks of channels, and images: the other sides of a grid."""
    settings: dict[str, Any]
    """Of the kernels that sum."""

    @property
    def grid(self) -> tuple[int, int, int]:
        """Of the programs that sum."""
        return self.parts, *self.groups

    @property
    def writing(self) -> tuple[int, int, int]:
        return -(-self.sizes[0] // self.written), *self.groups

    @property
    def write_settings(self) -> dict[str, Any]:
        return {**self.settings, "BLOCK_S": 1 << (self.parts - 1).bit_length()}


def plan_of(x: Tensor) -> Plan:
    """The plan for images that lie in one piece, in torch's usual order or with the channels of a pixel together."""
    images, channels, height, width = x.shape
    return _plan(images, channels, height * width, last=not x.is_contiguous(), small=not x.is_cuda)


@functools.lru_cache(maxsize=1024)
def _plan(images: int, channels: int, pixels: int, *, last: bool, small: bool) -> Plan:
    block_c = min(CHANNELS, 1 << (channels - 1).bit_length()) if last else 1
    if last and channels % CHANNELS and channels % (CHANNELS // 2) == 0:
        block_c = CHANNELS // 2
    numbers = 256 if small else NUMBERS  # interpreted, so that small images have several blocks, too
    block_p = max(1, min(numbers // block_c, 1 << (pixels - 1).bit_length()))
    groups = (-(-channels // block_c), images)
    part = max(-(-pixels // (MOST_PARTS * block_p)), LEAST_BLOCKS) * block_p
    written = max(2, min(MOST_WRITTEN, pixels // (WRITERS * block_p))) * block_p
    by_eight = channels % 8 == 0
    settings = {"LAST": last, "BY_EIGHT": by_eight, "BLOCK_P": block_p, "BLOCK_C": block_c, "num_warps": WARPS}
    return Plan((pixels, channels), part, -(-pixels // part), written, groups, settings)


def norm(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, eps: float, relu: bool, out: Tensor, kept: Tensor
) -> None:
    """Fills ``out`` and, unless it is empty, ``kept`` [n, 2, C]; x, residual and out lie alike."""
    plan = plan_of(x)
    parts = x.new_empty((len(x), plan.parts, 2, x.shape[1]), dtype=torch.float32)
    _kernels()["sums"][plan.grid](x, parts, *plan.sizes, plan.part, **plan.settings)
    flags = {"RELU": relu, "RESIDUAL": residual is not None, "KEEP": kept.numel() > 0}
    more = x if residual is None else residual
    steps = (*plan.sizes, plan.part, plan.parts, plan.written, eps)
    _kernels()["fwd"][plan.writing](x, weight, bias, more, parts, out, kept, *steps, **flags, **plan.write_settings)


def norm_back(
    v_out: Tensor, x: Tensor, weight: Tensor, out: Tensor | None, kept: Tensor, v_x: Tensor, v_residual: Tensor
) -> Tensor:  # [2, C]
    """Fills ``v_x`` and, unless it is empty, ``v_residual``; the gradients by bias and weight, in float32."""
    plan = plan_of(x)
    parts = x.new_empty((len(x), plan.parts, 2, x.shape[1]), dtype=torch.float32)
    cut, relu = (v_out, False) if out is None else (out, True)
    _kernels()["bwd_sums"][plan.grid](v_out, x, cut, kept, parts, *plan.sizes, plan.part, RELU=relu, **plan.settings)
    flags = {"RELU": relu, "RESIDUAL": v_residual.numel() > 0}
    steps = (*plan.sizes, plan.parts, plan.written)
    _kernels()["bwd"][plan.writing](
        v_out, x, cut, kept, weight, parts, v_x, v_residual, *steps, **flags, **plan.write_settings
    )
    return parts.sum((0, 1))


@functools.cache
def _kernels() -> dict[str, Any]:
    from hotlap.kernels.instance_norm import triton_kernels as kernels

    return {
        "sums": kernels.instance_norm_sums_kernel,
        "fwd": kernels.instance_norm_fwd_kernel,
        "bwd_sums": kernels.instance_norm_bwd_sums_kernel,
        "bwd": kernels.instance_norm_bwd_kernel,
    }
