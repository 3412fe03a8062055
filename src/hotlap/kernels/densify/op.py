"""The bookkeeping of densification, each part by the first implementation that can run here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from hotlap.base.errors import ShapeError
from hotlap.base.shapes import bind_dims
from hotlap.kernels.choose import Choice, choose
from hotlap.kernels.densify import cpu, cuda
from hotlap.kernels.densify.reference import accumulate_ref, add_noise_ref, plan_ref, relocate_ref
from hotlap.kernels.densify.stats import Plan, Stats, make_plan


def _always(like: Tensor) -> str:
    return ""


WHY_NOT: dict[str, Callable[[Tensor], str]] = {"cuda": cuda.why_not, "cpu": cpu.why_not, "reference": _always}
ACCUMULATE = {"cuda": cuda.accumulate, "cpu": cpu.accumulate, "reference": accumulate_ref}
PLAN = {"cuda": cuda.fill_plan, "cpu": cpu.fill_plan, "reference": plan_ref}
RELOCATE = {"cuda": cuda.relocate, "cpu": cpu.relocate, "reference": relocate_ref}
NOISE = {"cuda": cuda.add_noise, "cpu": cpu.add_noise, "reference": add_noise_ref}
IMPLS = tuple(WHY_NOT)
"""The implementations, those that are preferred first."""


def densify_accumulate(
    stats: Stats,
    v_means2d: Tensor,  # [C, N, 2]; with absgrad the sums of absolute gradients
    radii: Tensor,  # [C, N, 2] int32; 0: not drawn
    width: int,
    height: int,
    *,
    impl: str = "auto",
) -> None:
    """Adds one step to the statistics, in place, without waiting for the device.

    Gradients by pixels become gradients by half widths and half heights, times the number of cameras, over which a loss
    is a mean: the units in which thresholds are known.
    """
    bind_dims(**{"stats.grad": (stats.grad, "N")}, v_means2d=(v_means2d, "C N 2"), radii=(radii, "C N 2"))
    ACCUMULATE[densify_choice(v_means2d, impl).impl](stats, v_means2d, radii, width, height)


def densify_plan(
    clone: Tensor,  # [N] bool
    split: Tensor,  # [N] bool
    prune: Tensor,  # [N] bool
    *,
    capacity: int | None = None,
    impl: str = "auto",
) -> Plan:
    """Where each row of the next model comes from.

    A pruned splat goes, whatever else is asked of it; a split one is replaced by two children, one that is only cloned
    stays and is followed by its copy. The order is that of the present model, the same on every device. With a
    ``capacity`` nothing waits for the device, and ``plan.count`` says whether all rows had room; without one the plan
    has as many rows as it needs.
    """
    bind_dims(clone=(clone, "N"), split=(split, "N"), prune=(prune, "N"))
    for name, mask in (("clone", clone), ("split", split), ("prune", prune)):
        if mask.dtype != torch.bool:
            raise ShapeError(f"{name} is {mask.dtype}", expected="torch.bool")
    plan = make_plan(2 * len(prune) if capacity is None else capacity, prune.device)
    PLAN[densify_choice(prune, impl).impl](clone, split, prune, plan)
    if capacity is not None:
        return plan
    count = int(plan.count)
    return Plan(source=plan.source[:count], kind=plan.kind[:count], count=plan.count)


def densify_relocate(
    opacities: Tensor,  # [N]
    scales: Tensor,  # [N, 3]
    ratios: Tensor,  # [N] int32, at least 1
    *,
    impl: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Opacities [N] and scales [N, 3] of splats ``ratios`` of which take the place of one, the picture being alike."""
    bind_dims(opacities=(opacities, "N"), scales=(scales, "N 3"), ratios=(ratios, "N"))
    if ratios.dtype != torch.int32:
        raise ShapeError(f"ratios is {ratios.dtype}", expected="torch.int32")
    return RELOCATE[densify_choice(opacities, impl).impl](opacities, scales, ratios)


def densify_noise(
    means: Tensor,  # [N, 3]
    quats: Tensor,  # [N, 4] w, x, y, z, of any length but 0
    log_scales: Tensor,  # [N, 3]
    logits: Tensor,  # [N] of the opacities
    lr: Tensor,  # [] on the device
    step: Tensor,  # [] int32 on the device
    *,
    seed: int = 0,
    strength: float = 5e5,
    impl: str = "auto",
) -> None:
    """Moves the centres, in place, by lr * strength * sigmoid(-100 (opacity - 0.005)) * covariance @ normal.

    The normal numbers depend on row, step and seed alone, and are the same on every device. Nothing waits for it, so
    that a CUDA graph can replay the call with another step.
    """
    bind_dims(means=(means, "N 3"), quats=(quats, "N 4"), log_scales=(log_scales, "N 3"), logits=(logits, "N"))
    if not means.is_contiguous():
        raise ShapeError(f"means has strides {list(means.stride())}", expected="no gaps, as it is changed in place")
    name = densify_choice(means, impl).impl
    with torch.no_grad():
        NOISE[name](means, quats, log_scales, logits, lr, step, seed, strength)


def densify_choice(like: Tensor, impl: str = "auto") -> Choice:
    """The implementation that such tensors get, and the reasons against those before it."""
    return choose({name: partial(ask, like) for name, ask in WHY_NOT.items()}, impl)
