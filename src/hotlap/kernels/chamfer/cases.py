"""The inputs, sizes and tolerances that every implementation of the nearest distances is judged by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hotlap.kernels.agreement import Inputs
from hotlap.kernels.chamfer.reference import Nearest

TOLERANCE = 2e-6
"""Largest error over the largest number, of distances and gradients.

A difference of two coordinates is rounded once and a distance is a sum of three squares: four roundings of float32,
each 6e-8. A gradient adds up the few points that share a nearest one. The nearest point of one program may be another
that is as near up to rounding; so indices are judged by the distance they lead to.
"""


@dataclass(frozen=True, kw_only=True)
class ChamferCase:
    """Two batches of clouds."""

    batch: int
    """Pairs of clouds."""
    num_x: int
    """Points of a cloud of x, padding included."""
    num_y: int
    """Points of a cloud of y, padding included."""
    ragged: bool = False
    """The clouds have lengths of their own, 1 and all of it among them."""
    strided: bool = False
    """x is a view with gaps."""
    tolerance: float = TOLERANCE
    """Largest error over the largest number."""

    @property
    def id(self) -> str:
        words = [f"b{self.batch}", f"{self.num_x}x{self.num_y}"]
        return "-".join(words + [word for word in ("ragged", "strided") if getattr(self, word)])

    def make(self, device: torch.device) -> dict[str, Tensor | None]:
        """The inputs by name, the same numbers on every device."""
        generator = torch.Generator().manual_seed(0)
        x = 0.3 * torch.randn(self.batch, self.num_x, 6, generator=generator)
        y = 0.3 * torch.randn(self.batch, self.num_y, 3, generator=generator)
        made: dict[str, Tensor | None] = {
            "x": x.to(device)[..., ::2] if self.strided else x[..., :3].contiguous().to(device),
            "y": y.to(device),
            "x_lengths": None,
            "y_lengths": None,
        }
        if self.ragged:
            for name, count in (("x_lengths", self.num_x), ("y_lengths", self.num_y)):
                lengths = torch.randint(1, count + 1, (self.batch,), generator=generator)
                lengths[: min(2, self.batch)] = torch.tensor([count, 1])[: self.batch]
                made[name] = lengths.to(device)
        return made


Op = Callable[[Tensor, Tensor, Tensor | None, Tensor | None], Nearest]


def run_chamfer(op: Op) -> Callable[[Inputs], dict[str, Tensor]]:
    """A function from a case's inputs to the distances, and to those that the indices lead to."""

    def run(inputs: Inputs) -> dict[str, Tensor]:
        x, y = inputs["x"], inputs["y"]
        assert x is not None and y is not None
        found = op(x, y, inputs["x_lengths"], inputs["y_lengths"])
        return {
            "x_distance": found.x_distance,
            "y_distance": found.y_distance,
            "x_reached": _reached(x, y, found.x_index),
            "y_reached": _reached(y, x, found.y_index),
        }

    return run


def _reached(points: Tensor, others: Tensor, index: Tensor) -> Tensor:
    picked = others.gather(1, index.clamp(min=0)[..., None].expand(-1, -1, 3))
    return (points - picked).square().sum(-1).masked_fill(index < 0, 0).detach()


SMALL = (
    ChamferCase(batch=1, num_x=1, num_y=1),
    ChamferCase(batch=2, num_x=37, num_y=5),
    ChamferCase(batch=3, num_x=127, num_y=61, ragged=True),
    ChamferCase(batch=2, num_x=19, num_y=300, strided=True),
    ChamferCase(batch=4, num_x=300, num_y=150, ragged=True, strided=True),
    ChamferCase(batch=0, num_x=3, num_y=4),
)
"""One, primes, several chunks and blocks, padding, a view, nothing: small enough for a CPU."""

REAL = (
    ChamferCase(batch=16, num_x=6466, num_y=3000, ragged=True),
    ChamferCase(batch=1, num_x=2466, num_y=9000),
    ChamferCase(batch=2, num_x=10_000, num_y=10_000),
)
"""A training step, one object, and two of the size that is compared with ``torch.cdist``: for a card."""
