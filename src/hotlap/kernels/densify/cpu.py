"""The bookkeeping of densification on the CPU, compiled by numba."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from hotlap.kernels.densify.stats import Plan, Stats
from hotlap.kernels.threads import in_threads


def why_not(like: Tensor) -> str:
    """Why this implementation cannot work on such tensors; '' if it can."""
    if like.device.type != "cpu":
        return f"the tensors are on {like.device.type}"
    return "" if find_spec("numba") is not None else "numba is not installed"


def accumulate(stats: Stats, v_means2d: Tensor, radii: Tensor, width: int, height: int) -> None:
    """Adds one step to the statistics; ``accumulate_ref`` says how."""
    from hotlap.kernels.densify.cpu_kernels import accumulate_kernel

    num_cameras, num_splats, _ = radii.shape
    given = (
        v_means2d.detach().contiguous(),
        radii.contiguous(),
        stats.grad,
        stats.count,
        stats.max_radius,
        stats.visible,
    )
    scales = num_cameras * width / 2, num_cameras * height / 2, float(max(width, height))
    in_threads(accumulate_kernel, num_splats, *(t.numpy() for t in given), *scales)


def fill_plan(clone: Tensor, split: Tensor, prune: Tensor, plan: Plan) -> None:
    """Fills a plan; ``plan_ref`` says with what."""
    from hotlap.kernels.densify.cpu_kernels import plan_kernel

    given = (clone.contiguous(), split.contiguous(), prune.contiguous(), plan.source, plan.kind)
    plan.count.fill_(plan_kernel(*(tensor.numpy() for tensor in given)))


def relocate(opacities: Tensor, scales: Tensor, ratios: Tensor) -> tuple[Tensor, Tensor]:
    """New opacities and scales; ``relocate_ref`` says which."""
    from hotlap.kernels.densify.cpu_kernels import relocate_kernel

    opacities, scales, ratios = (tensor.detach().contiguous() for tensor in (opacities, scales, ratios))
    made = torch.empty_like(opacities), torch.empty_like(scales)
    given = (opacities, scales, ratios, *made)
    in_threads(relocate_kernel, len(opacities), *(tensor.numpy() for tensor in given))
    return made


def add_noise(
    means: Tensor, quats: Tensor, log_scales: Tensor, logits: Tensor, lr: Tensor, step: Tensor,
    seed: int, strength: float,
) -> None:  # fmt: skip
    """Moves the centres in place; ``add_noise_ref`` says how."""
    from hotlap.kernels.densify.cpu_kernels import noise_kernel

    key = np.array([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF], np.uint64)
    given = [tensor.detach().contiguous().numpy() for tensor in (means, quats, log_scales, logits)]
    in_threads(noise_kernel, len(means), *given, float(lr) * strength, int(step), key)
