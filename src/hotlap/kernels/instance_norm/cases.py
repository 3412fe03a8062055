"""The inputs, sizes and tolerances that every implementation of the instance norm is judged by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hotlap.kernels.agreement import Inputs, in_float64
from hotlap.kernels.instance_norm.reference import instance_norm_ref

TOLERANCES = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
"""Largest error over the largest number, of output and gradients.

Float32: sums of up to a million numbers in any order, taken from near their mean, and their inverse root, are some 1e-6
off. Float16 and bfloat16 are computed in float32; the result and each gradient are rounded once, by 2^-11 and 2^-8 of
the largest, and the gradient sees at which side of 0 a rounded result lies. Three such roundings are allowed.
"""


@dataclass(frozen=True, kw_only=True)
class InstanceNormCase:
    """One norm of some images."""

    images: int
    channels: int
    height: int
    width: int
    relu: bool = False
    """Cut off below 0."""
    residual: bool = False
    """Something is added before that."""
    last: bool = False
    """The channels of a pixel lie side by side."""
    strided: bool = False
    """x is a view with gaps."""
    far: float = 0.0
    """Added to all numbers: a mean that is far more than the deviation."""
    dtype: torch.dtype = torch.float32
    """Of x and residual; weight and bias are float32."""

    @property
    def id(self) -> str:
        words = [f"n{self.images}", f"c{self.channels}", f"{self.height}x{self.width}"]
        words += [word for word in ("relu", "residual", "last", "strided", "far") if getattr(self, word)]
        return "-".join([*words, str(self.dtype).removeprefix("torch.")])

    @property
    def tolerance(self) -> float:
        """A mean far from 0 is itself a float32 and rounded, by 2^-24 of it, once for its part and once for all."""
        return TOLERANCES[self.dtype] + 2 * self.far * 2**-24

    def make(self, device: torch.device) -> dict[str, Tensor | None]:
        """The inputs by name, the same numbers on every device."""
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        def image(wide: int = 1) -> Tensor:
            made = normal(self.images, self.channels, self.height, wide * self.width).to(device, self.dtype)
            return made.contiguous(memory_format=torch.channels_last) if self.last else made

        x = image(2 if self.strided else 1) + self.far
        return {
            "x": x[..., ::2] if self.strided else x,
            "weight": 1 + 0.3 * normal(self.channels).to(device),
            "bias": 0.5 * normal(self.channels).to(device),
            "residual": image() if self.residual else None,
        }

    @property
    def typical(self) -> dict[str, float]:
        """Sizes of sums of gradients, which have either sign and may nearly cancel."""
        size = max(1, self.images * self.height * self.width) ** 0.5
        return {"grad weight": size, "grad bias": size, "grad x": 1.0}

    def decided(self) -> Tensor:  # [n, C, H, W] float64
        """1 for outputs, 0 for those so near the kink of the cut that rounding decides on which side they lie.

        The gradients of both sides are right there, and far apart.
        """
        if not self.relu:
            return torch.ones(1, dtype=torch.float64)
        made = in_float64(self.make(torch.device("cpu")))
        x, weight, bias = (made[name] for name in ("x", "weight", "bias"))
        assert x is not None and weight is not None and bias is not None
        before = instance_norm_ref(x, weight, bias, residual=made["residual"])
        return (before.abs() > self.tolerance * max(1.0, before.abs().amax().item() if before.numel() else 0)).double()


def run_norm(norm: Callable[..., Tensor], case: InstanceNormCase) -> Callable[[Inputs], dict[str, Tensor]]:
    """A function from a case's inputs to the norm's output, and to the part of it that gradients are compared of."""
    decided = case.decided()

    def run(inputs: Inputs) -> dict[str, Tensor]:
        given = [inputs[name] for name in ("x", "weight", "bias")]
        out = norm(*given, residual=inputs["residual"], relu=case.relu)
        return {"out": out.detach(), "decided": out * decided.to(out.device, out.dtype)}

    return run


SMALL = (
    InstanceNormCase(images=1, channels=1, height=1, width=2),
    InstanceNormCase(images=1, channels=3, height=1, width=1, relu=True),
    InstanceNormCase(images=2, channels=7, height=13, width=11, relu=True, residual=True),
    InstanceNormCase(images=2, channels=7, height=13, width=11, relu=True, residual=True, last=True),
    InstanceNormCase(images=1, channels=96, height=9, width=5, last=True, residual=True),
    InstanceNormCase(images=3, channels=70, height=8, width=8, last=True, relu=True),
    InstanceNormCase(images=1, channels=5, height=37, width=31, strided=True),
    InstanceNormCase(images=1, channels=4, height=29, width=23, far=1000.0),
    InstanceNormCase(images=1, channels=4, height=29, width=23, far=1000.0, last=True),
    InstanceNormCase(images=2, channels=16, height=12, width=10, last=True, relu=True, dtype=torch.bfloat16),
    InstanceNormCase(images=2, channels=16, height=12, width=10, relu=True, residual=True, dtype=torch.float16),
    InstanceNormCase(images=0, channels=4, height=5, width=5, relu=True),
)
"""One, primes, both layouts, a view, a mean far from 0, nothing: small enough for a CPU and for an interpreter."""

REAL = tuple(
    InstanceNormCase(
        images=n, channels=c, height=size, width=size, relu=relu, residual=residual, last=last, dtype=dtype
    )
    for dtype in TOLERANCES
    for last in (False, True)
    for n, c, size, relu, residual in (
        (2, 48, 256, True, True),
        (3, 384, 32, False, True),
        (1, 24, 256, True, False),
        (5, 1, 128, False, False),
    )
)
"""Norms of the cell networks, in each layout and number format, cut so that float64 takes no longer than a moment: for
a card."""
