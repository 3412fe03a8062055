"""The inputs, sizes and tolerances that every implementation of enlarged maps is judged by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hotlap.kernels.agreement import Inputs, in_float64
from hotlap.kernels.enlarge.reference import enlarge_ref

TOLERANCES = {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
"""Largest error over the largest number, of output and gradients.

Float32: a place among 512 pixels is a float32 product, 2^-24 of it off, 3e-5 of a pixel, and the difference of two
neighbours is up to half of the largest number, in each of three parts. 16 bits: computed in float32; the result and
each gradient are rounded once, by 2^-11 and 2^-8 of the largest. Three such roundings are allowed.
"""


@dataclass(frozen=True, kw_only=True)
class EnlargeCase:
    """Some maps for one of a size."""

    images: int
    channels: int
    size: tuple[int, int]
    """Of the base."""
    parts: tuple[tuple[int, int], ...]
    """The sizes of the others."""
    relu: bool = False
    """Cut off below 0."""
    last: bool = False
    """The channels of a pixel lie side by side."""
    strided: bool = False
    """The base is a view with gaps."""
    dtype: torch.dtype = torch.float32

    @property
    def id(self) -> str:
        sizes = "+".join(f"{high}x{wide}" for high, wide in (self.size, *self.parts))
        words = [f"n{self.images}", f"c{self.channels}", sizes]
        words += [word for word in ("relu", "last", "strided") if getattr(self, word)]
        return "-".join([*words, str(self.dtype).removeprefix("torch.")])

    @property
    def tolerance(self) -> float:
        return TOLERANCES[self.dtype]

    def make(self, device: torch.device) -> dict[str, Tensor | None]:
        """The inputs by name, the same numbers on every device."""
        generator = torch.Generator().manual_seed(0)

        def image(high: int, wide: int) -> Tensor:
            made = torch.randn((self.images, self.channels, high, wide), generator=generator).to(device, self.dtype)
            return made.contiguous(memory_format=torch.channels_last) if self.last else made

        high, wide = self.size
        base = image(high, 2 * wide)[..., ::2] if self.strided else image(high, wide)
        return {"base": base, **{f"part {n}": image(*size) for n, size in enumerate(self.parts)}}

    def decided(self) -> Tensor:  # [n, C, H, W] float64
        """1 for outputs, 0 for those so near the kink of the cut that rounding decides on which side they lie."""
        if not self.relu:
            return torch.ones(1, dtype=torch.float64)
        before = run_enlarge(enlarge_ref, self, cut=False)(in_float64(self.make(torch.device("cpu"))))["out"]
        return (before.abs() > self.tolerance * max(1.0, before.abs().amax().item() if before.numel() else 0)).double()


def run_enlarge(
    enlarge: Callable[..., Tensor], case: EnlargeCase, *, cut: bool = True
) -> Callable[[Inputs], dict[str, Tensor]]:
    """A function from a case's inputs to the output, and to the part of it that gradients are compared of."""
    decided = case.decided() if cut else torch.ones(1, dtype=torch.float64)

    def run(inputs: Inputs) -> dict[str, Tensor]:
        base, *parts = inputs.values()
        out = enlarge(base, parts, relu=case.relu and cut)
        return {"out": out.detach(), "decided": out * decided.to(out.device, out.dtype)}

    return run


SMALL = (
    EnlargeCase(images=1, channels=1, size=(1, 1), parts=((1, 1),)),
    EnlargeCase(images=1, channels=2, size=(5, 1), parts=((1, 1), (3, 1))),
    EnlargeCase(images=2, channels=3, size=(13, 11), parts=((7, 6), (3, 2), (1, 1)), relu=True),
    EnlargeCase(images=2, channels=7, size=(13, 11), parts=((7, 6), (3, 2), (1, 1)), relu=True, last=True),
    EnlargeCase(images=1, channels=72, size=(6, 10), parts=((3, 5),), last=True),
    EnlargeCase(images=1, channels=3, size=(9, 8), parts=((5, 4), (3, 2)), strided=True),
    EnlargeCase(images=1, channels=3, size=(4, 4), parts=((7, 9),)),
    EnlargeCase(
        images=2, channels=16, size=(8, 12), parts=((4, 6), (2, 3)), last=True, relu=True, dtype=torch.bfloat16
    ),
    EnlargeCase(images=2, channels=5, size=(8, 12), parts=((4, 6), (2, 3)), relu=True, dtype=torch.float16),
    EnlargeCase(images=0, channels=4, size=(6, 6), parts=((3, 3),)),
)
"""One, primes, both layouts, a view, a part that is larger, nothing: small enough for a CPU and for an interpreter."""

REAL = tuple(
    EnlargeCase(images=1, channels=channels, size=size, parts=parts, last=last, relu=True, dtype=dtype)
    for dtype in TOLERANCES
    for last in (False, True)
    for channels, size, parts in (
        (48, (256, 256), ((128, 128), (64, 64), (32, 32))),
        (96, (128, 128), ((64, 64), (32, 32))),
        (192, (64, 64), ((32, 32),)),
    )
)
"""Exchanges of HRNet, in each layout and number format: for a card."""
