"""The bookkeeping of densification on an NVIDIA card (``densify.cu``), compiled at run time by NVRTC."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from hotlap.kernels import launch as launching
from hotlap.kernels.densify.stats import Plan, Stats
from hotlap.kernels.launch import Argument
from hotlap.kernels.nvrtc import Program, why_no_compiler

THREADS, ROWS = 256, 1024


def why_not(like: Tensor) -> str:
    """Why this implementation cannot work on such tensors; '' if it can."""
    if like.device.type != "cuda":
        return f"the tensors are on {like.device.type}"
    if like.is_floating_point() and like.dtype != torch.float32:
        return f"{str(like.dtype).removeprefix('torch.')} is not float32"
    return why_no_compiler()


@functools.cache
def program() -> Program:
    """All kernels."""
    source = launching.read_source(Path(__file__).with_name("densify.cu"))
    return Program(name="densify.cu", source=source)


def _launch(name: str, blocks: int, arguments: Sequence[Argument], device: torch.device) -> None:
    launching.launch(program(), f"densify_{name}_kernel", (blocks, 1, 1), THREADS, arguments, device)


def accumulate(stats: Stats, v_means2d: Tensor, radii: Tensor, width: int, height: int) -> None:
    """Adds one step to the statistics; ``accumulate_ref`` says how."""
    num_cameras, num_splats, _ = radii.shape
    scales = [float(num_cameras * width / 2), float(num_cameras * height / 2), float(max(width, height))]
    tensors = [v_means2d.contiguous(), radii.contiguous(), stats.grad, stats.count, stats.max_radius, stats.visible]
    arguments: list[Argument] = [*tensors, num_splats, num_cameras, *scales]
    _launch("accumulate", -(-num_splats // THREADS), arguments, radii.device)


def fill_plan(clone: Tensor, split: Tensor, prune: Tensor, plan: Plan) -> None:
    """Fills a plan; ``plan_ref`` says with what."""
    num_splats, capacity, device = len(prune), len(plan.source), prune.device
    blocks = -(-num_splats // ROWS)
    sums = torch.empty(blocks, dtype=torch.int32, device=device)
    masks = [mask.contiguous() for mask in (clone, split, prune)]
    _launch("count", blocks, [*masks, sums, num_splats], device)
    _launch("scan", 1, [sums, plan.count, blocks], device)
    _launch("place", blocks, [*masks, sums, plan.source, plan.kind, num_splats, capacity], device)
    _launch("rest", -(-capacity // THREADS), [plan.count, plan.source, plan.kind, capacity], device)


def relocate(opacities: Tensor, scales: Tensor, ratios: Tensor) -> tuple[Tensor, Tensor]:
    """New opacities and scales; ``relocate_ref`` says which."""
    made = torch.empty_like(opacities), torch.empty(scales.shape, dtype=scales.dtype, device=scales.device)
    given = [tensor.contiguous() for tensor in (opacities, scales, ratios)]
    _launch("relocate", -(-len(opacities) // THREADS), [*given, *made, len(opacities)], opacities.device)
    return made


def add_noise(
    means: Tensor, quats: Tensor, log_scales: Tensor, logits: Tensor, lr: Tensor, step: Tensor,
    seed: int, strength: float,
) -> None:  # fmt: skip
    """Moves the centres in place; ``add_noise_ref`` says how."""
    given = [tensor.contiguous() for tensor in (quats, log_scales, logits)]
    halves = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    arguments: list[Argument] = [means, *given, lr, step, len(means), float(strength), *halves]
    _launch("noise", -(-len(means) // THREADS), arguments, means.device)
