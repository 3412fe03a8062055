"""The inputs, sizes and tolerances that every implementation of pooled channels is judged by."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TOLERANCES = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
"""Largest error over the largest number, of output and gradient.

Float32: sums of up to a thousand numbers in any order. 16 bits: means are summed in float32 and rounded once, as is the
sum of the two gradients; maxima are exact. Three roundings, by 2^-11 and 2^-8, are allowed.
"""


@dataclass(frozen=True, kw_only=True)
class ChannelPoolCase:
    """Some images."""

    images: int
    channels: int
    height: int
    width: int
    last: bool = False
    """The channels of a pixel lie side by side."""
    strided: bool = False
    """A view with gaps."""
    equal: bool = False
    """Few values, so that several channels have the maximum."""
    dtype: torch.dtype = torch.float32

    @property
    def id(self) -> str:
        words = [f"n{self.images}", f"c{self.channels}", f"{self.height}x{self.width}"]
        words += [word for word in ("last", "strided", "equal") if getattr(self, word)]
        return "-".join([*words, str(self.dtype).removeprefix("torch.")])

    @property
    def tolerance(self) -> float:
        return TOLERANCES[self.dtype]

    def make(self, device: torch.device) -> dict[str, Tensor | None]:
        """The input by name, the same numbers on every device."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn((self.images, self.channels, self.height, 2 * self.width), generator=generator)
        x = (x.round() if self.equal else x).to(device, self.dtype)
        x = x[..., ::2] if self.strided else x[..., : self.width].contiguous()
        return {"x": x.contiguous(memory_format=torch.channels_last) if self.last else x}


SMALL = (
    ChannelPoolCase(images=1, channels=1, height=1, width=1),
    ChannelPoolCase(images=2, channels=7, height=5, width=11),
    ChannelPoolCase(images=2, channels=7, height=5, width=11, last=True),
    ChannelPoolCase(images=1, channels=72, height=3, width=13, last=True),
    ChannelPoolCase(images=1, channels=72, height=3, width=13, equal=True),
    ChannelPoolCase(images=3, channels=24, height=8, width=8, last=True, equal=True),
    ChannelPoolCase(images=1, channels=5, height=7, width=9, strided=True),
    ChannelPoolCase(images=2, channels=16, height=6, width=10, last=True, dtype=torch.bfloat16),
    ChannelPoolCase(images=2, channels=16, height=6, width=10, dtype=torch.float16),
    ChannelPoolCase(images=0, channels=4, height=5, width=5),
)
"""One, primes, both layouts, a view, equal maxima, nothing: small enough for a CPU and for an interpreter."""

REAL = tuple(
    ChannelPoolCase(images=2, channels=channels, height=size, width=size, last=last, dtype=dtype)
    for dtype in TOLERANCES
    for last in (False, True)
    for channels, size in ((48, 256), (24, 128), (1024, 32))
)
"""Blocks of the cell networks, in each layout and number format: for a card."""
