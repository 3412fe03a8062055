"""Maps enlarged and added in plain torch: the truth that every implementation is held to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def enlarge_ref(base: Tensor, parts: Sequence[Tensor], *, relu: bool = False) -> Tensor:
    """relu(base + the parts [n, C, h, w], enlarged bilinearly to its size) [n, C, H, W]; corners lie on corners.

    16-bit numbers are computed in float32 and rounded once. Differentiable in base and parts.
    """
    wide = torch.float32 if base.dtype in (torch.float16, torch.bfloat16) else base.dtype
    total = base.to(wide)
    for part in parts:
        total = total + F.interpolate(part.to(wide), size=base.shape[-2:], mode="bilinear", align_corners=True)
    return (torch.relu(total) if relu else total).to(base.dtype)
