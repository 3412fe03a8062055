"""The models and tolerances that every implementation of densification's bookkeeping is judged by."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TOLERANCE = 5e-6
"""Largest error over the largest number, in float32. Each number is a handful of roundings, of exponentials and
logarithms among them, and one such rounding is 6e-8 to 2e-7. Plans are whole numbers and must be equal."""


@dataclass(frozen=True, kw_only=True)
class DensifyCase:
    """A model after a step."""

    splats: int
    """Rows."""
    cameras: int = 2
    """Of the step."""
    width: int = 640
    """Of the picture."""
    height: int = 360
    """Of the picture."""

    @property
    def id(self) -> str:
        return f"n{self.splats}-c{self.cameras}"

    def make(self, device: torch.device) -> dict[str, Tensor]:
        """The tensors by name, the same numbers on every device."""
        generator = torch.Generator().manual_seed(self.splats)
        num = self.splats

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        def chance(share: float) -> Tensor:
            return torch.rand(num, generator=generator) < share

        radii = torch.randint(-20, 60, (self.cameras, num, 2), generator=generator, dtype=torch.int32).clamp(min=0)
        made = {
            "v_means2d": 1e-5 * normal(self.cameras, num, 2),
            "radii": radii,
            "clone": chance(0.3),
            "split": chance(0.2),
            "prune": chance(0.25),
            "opacities": (0.01 + 0.98 * torch.rand(num, generator=generator)),
            "scales": normal(num, 3).exp() * 0.05,
            "ratios": torch.randint(1, 13, (num,), generator=generator, dtype=torch.int32),
            "means": torch.zeros(num, 3),
            "quats": normal(num, 4) * 2,
            "log_scales": normal(num, 3) - 3,
            "logits": normal(num) - 5,
            "lr": torch.tensor(1.6e-4),
            "step": torch.tensor(777, dtype=torch.int32),
        }
        return {name: tensor.to(device) for name, tensor in made.items()}


CASES = (
    DensifyCase(splats=0),
    DensifyCase(splats=1, cameras=1),
    DensifyCase(splats=1031),
    DensifyCase(splats=300, cameras=3, width=100, height=200),
)
"""Nothing, one, a prime above what a block of the plan takes, a picture that is higher than wide."""

REAL = (DensifyCase(splats=1_000_003, cameras=1),)
"""A model of real use, with more blocks than one block can sum in a round: for a card."""
