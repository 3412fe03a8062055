"""The inputs, sizes and tolerances that every implementation of the pooling is judged by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hotlap.kernels.agreement import Inputs

TOLERANCES = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 8e-2}
"""Largest error over the largest number, of output and gradients.

Float32: a place in a map of 224 pixels is known to 1e-5 of a pixel, and a feature changes by its own size from one
pixel to the next. Where two views agree the deviation is the root of little more than 1e-6, and its slope divides by
it: some 1e-4 of the largest gradient. Float16 and bfloat16 round the result and the gradient by the maps, by 2^-11
and 2^-8, and
many roundings of points that share a pixel add up.
"""


@dataclass(frozen=True, kw_only=True)
class ViewPoolCase:
    """Maps of several views, and points in them."""

    objects: int
    """Each with its own views."""
    views: int
    """Of an object."""
    points: int
    """Of an object."""
    maps: tuple[tuple[int, int], ...]
    """Channels and side of each map."""
    size: int = 32
    """Side of the pictures."""
    bilinear: bool = True
    """Between pixels; else the pixel above and to the left."""
    compat: bool = False
    """With the published network's mistake."""
    tail: bool = False
    """With the points' coordinates behind."""
    channels_last: bool = False
    """The maps lie in memory with their channels side by side."""
    dtype: torch.dtype = torch.float32
    """Of the maps."""

    @property
    def id(self) -> str:
        words = [f"b{self.objects}", f"v{self.views}", f"n{self.points}", f"m{len(self.maps)}"]
        words += [word for word in ("bilinear", "compat", "tail", "channels_last") if getattr(self, word)]
        return "-".join([*words, str(self.dtype).removeprefix("torch.")])

    @property
    def tolerance(self) -> float:
        return TOLERANCES[self.dtype]

    def make(self, device: torch.device) -> dict[str, Tensor | None]:
        """The inputs by name, the same numbers on every device; some points fall outside the picture."""
        generator = torch.Generator().manual_seed(0)
        made: dict[str, Tensor | None] = {}
        for number, (channels, side) in enumerate(self.maps):
            image = torch.randn(self.objects * self.views, channels, side, side, generator=generator)
            layout = torch.channels_last if self.channels_last else torch.contiguous_format
            made[f"map {number}"] = image.to(device, self.dtype).contiguous(memory_format=layout)
        shape = (self.objects, self.views, self.points, 2)
        pixels = (1.3 * torch.rand(shape, generator=generator) - 0.15) * self.size
        points = torch.randn(self.objects, self.points, 3, generator=generator)
        return {**made, "pixels": pixels.to(device), "points": points.to(device) if self.tail else None}


def run_pool(pool: Callable[..., Tensor], case: ViewPoolCase) -> Callable[[Inputs], dict[str, Tensor]]:
    """A function from a case's inputs to the pooled features."""

    def run(inputs: Inputs) -> dict[str, Tensor]:
        maps = [tensor for name, tensor in inputs.items() if name.startswith("map")]
        settings = {"size": case.size, "bilinear": case.bilinear, "compat": case.compat}
        return {"out": pool(maps, inputs["pixels"], inputs["points"], **settings)}

    return run


SMALL = (
    ViewPoolCase(objects=1, views=1, points=1, maps=((1, 4),)),
    ViewPoolCase(objects=2, views=3, points=17, maps=((5, 32), (3, 16), (9, 8)), tail=True),
    ViewPoolCase(objects=1, views=5, points=19, maps=((7, 8), (20, 4)), bilinear=False, channels_last=True),
    ViewPoolCase(objects=2, views=6, points=11, maps=((4, 8), (3, 16)), bilinear=False, compat=True, tail=True),
    ViewPoolCase(objects=1, views=2, points=23, maps=((6, 32),), dtype=torch.float16, tail=True, channels_last=True),
    ViewPoolCase(objects=1, views=2, points=9, maps=((6, 32), (2, 8)), dtype=torch.bfloat16),
    ViewPoolCase(objects=1, views=2, points=0, maps=((6, 32),)),
)
"""One, primes, both layouts, both ways to sample, nothing: small enough for a CPU and for an interpreter."""

REAL = tuple(
    ViewPoolCase(
        objects=2,
        views=3,
        points=points,
        maps=maps,
        size=224,
        bilinear=bilinear,
        channels_last=True,
        tail=True,
        dtype=dtype,
    )
    for dtype in TOLERANCES
    for points, maps, bilinear in (
        (20_000, ((16, 224), (32, 112), (64, 56)), True),
        (618, ((64, 56), (128, 28), (256, 14), (512, 7)), False),
    )
)
"""Both stages of Pixel2Mesh++, in each number format: for a card."""
