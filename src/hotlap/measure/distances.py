"""How far an answer is from the truth: outputs, gradients, losses."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def relative_error(out: Tensor, truth: Tensor) -> float:
    """The norm of the difference over the norm of the truth; inf where shapes differ or anything is not finite."""
    if out.shape != truth.shape or not bool(out.isfinite().all()):
        return math.inf
    norm = float(truth.norm())
    return float((out - truth).norm()) / norm if norm > 0 else float((out - truth).norm())


def total_error(got: dict[str, Tensor], truth: dict[str, Tensor]) -> float:
    """The relative error of all gradients taken as one vector."""
    import torch

    return relative_error(
        torch.cat([got[n].flatten() for n in truth]), torch.cat([t.flatten() for t in truth.values()])
    )


def worst_error(got: dict[str, Tensor], truth: dict[str, Tensor]) -> tuple[float, str]:
    """The largest relative error of a single gradient, and its name.

    Some true gradients are zero (a bias before a normalisation), so each is measured against its own norm plus the
    share of the whole that its size would give it.
    """
    total = math.sqrt(sum(float(t.square().sum()) for t in truth.values()))
    count = sum(t.numel() for t in truth.values())
    worst, worst_name = 0.0, ""
    for name, want in truth.items():
        if not bool(got[name].isfinite().all()):
            return math.inf, f"{name} is not finite"
        floor = total * math.sqrt(want.numel() / count) if count else 0.0
        scale = float(want.norm()) + floor
        error = float((got[name] - want).norm()) / scale if scale > 0 else 0.0
        if error >= worst:
            worst, worst_name = error, name
    return worst, worst_name


def trajectory_error(losses: list[float], truth: list[float]) -> float:
    """The largest difference of two runs of losses, over the true loss or the one before it, whichever is larger.

    A step that takes most of a loss away takes digits of it, too: a fresh ResNet-18 that meets its first pictures again
    falls from 6.46 to 1.19, and right programs in bfloat16 end there 3% of that apart.
    """
    if not all(math.isfinite(loss) for loss in losses):
        return math.inf
    sizes = [max(abs(before), abs(want), 1e-12) for before, want in itertools.pairwise([truth[0], *truth])]
    return max(abs(loss - want) / size for loss, want, size in zip(losses, truth, sizes, strict=True))
