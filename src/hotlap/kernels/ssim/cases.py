"""The inputs, sizes and tolerances that every implementation of L1 and SSIM is judged by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hotlap.kernels.agreement import Inputs
from hotlap.kernels.ssim.reference import compared

TOLERANCES = {torch.float32: 5e-5, torch.float64: 1e-11, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Largest error over the largest number, of the loss and of the gradient.

The variances in a window are differences of numbers up to 4, and SSIM divides by them plus 0.0018: a rounding of
float32 in such a number, 2.4e-7, is 1e-4 of the smallest divisor, and over a window with noise of a few hundredths some
1e-5 remains. The reference's own formula in float32 is up to 2.1e-5 off on these cases, the kernels' 4e-6. In float64
it is 2^29 times less. In float16 and bfloat16 the gradient is rounded once when it is handed to the
image, by 2^-11 and 2^-8; the arithmetic is float32.
"""


CLOSEST = 1e-5
"""Numbers of image and target are equal or this far apart: a hundred roundings of float32."""


@dataclass(frozen=True, kw_only=True)
class SsimCase:
    """Two pictures to be compared."""

    batch: int
    """Pictures."""
    height: int
    """Rows."""
    width: int
    """Pixels of a row."""
    channels: int = 3
    """Of a pixel, alpha not counted."""
    dtype: torch.dtype = torch.float32
    """Of the image, and of a target that is not of bytes."""
    bytes: bool = False
    """The target is uint8."""
    alpha: bool = False
    """The target has alpha and there is a background."""
    masked: bool = False
    """There is a mask, with zeros, ones and numbers between."""
    strided: bool = False
    """The image is a view with gaps."""
    ssim_weight: float = 0.2
    """The share of SSIM in the loss."""

    @property
    def id(self) -> str:
        words = [f"b{self.batch}", f"{self.height}x{self.width}", f"c{self.channels}", f"w{self.ssim_weight:g}"]
        words += [word for word in ("bytes", "alpha", "masked", "strided") if getattr(self, word)]
        return "-".join([*words, str(self.dtype).removeprefix("torch.")])

    @property
    def tolerance(self) -> float:
        return TOLERANCES[self.dtype]

    def make(self, device: torch.device) -> dict[str, Tensor | None]:
        """The inputs by name, the same numbers on every device: a smooth scene, and an image that is nearly it."""
        generator = torch.Generator().manual_seed(0)

        def uniform(*shape: int) -> Tensor:
            return torch.rand(shape, generator=generator)

        shape = (self.batch, self.height, self.width, self.channels)
        row, pixel = torch.arange(self.height)[:, None, None], torch.arange(self.width)[:, None]
        scene = 0.5 + 0.3 * torch.sin(0.3 * row + 0.17 * pixel + torch.arange(self.channels))
        scene = (scene + 0.1 * (uniform(*shape) - 0.5)).clamp(0, 1)
        image = (scene + 0.2 * (uniform(*shape) - 0.5)).to(self.dtype)
        if self.alpha:
            scene = torch.cat([scene, uniform(*shape[:3], 1).round(decimals=1)], dim=-1)
        target = (scene * 255).to(torch.uint8) if self.bytes else scene.to(self.dtype)
        background = uniform(self.batch, self.channels) if self.alpha else None
        image = _off_the_kink(image, target, background).to(device)
        if self.strided:
            image = torch.stack([image, torch.zeros_like(image)], dim=-1)[..., 0]
        mask = (1.6 * uniform(*shape[:3]) - 0.3).clamp(0, 1) if self.masked else None
        return {
            "image": image,
            "target": target.to(device),
            "mask": None if mask is None else mask.to(device),
            "background": None if background is None else background.to(device),
        }


def _off_the_kink(image: Tensor, target: Tensor, background: Tensor | None) -> Tensor:
    """The image without numbers that only rounding tells from the target's.

    There the slope of L1 jumps from -1 to 1, and among millions of numbers some would have another sign in float32 than
    in the reference's float64: both right, and far apart. Numbers that are equal stay so: their slope is 0.
    """
    _, wanted = compared(image.double(), target, None, background)
    gap = image.double() - wanted
    image[(gap != 0) & (gap.abs() < CLOSEST)] += 4 * CLOSEST
    return image


def run_loss(loss: Callable[..., Tensor], case: SsimCase) -> Callable[[Inputs], dict[str, Tensor]]:
    """A function from a case's inputs to the loss; no gradient is asked for but the image's.

    The loss is scaled by the number of pixels, as a gradient scaler does it: the slope of a mean over a million numbers
    is too small for float16.
    """

    def run(inputs: Inputs) -> dict[str, Tensor]:
        fixed = {name: t if t is None else t.detach() for name, t in inputs.items() if name != "image"}
        mean = loss(inputs["image"], ssim_weight=case.ssim_weight, **fixed)
        return {"loss": mean * (case.batch * case.height * case.width)}

    return run


SMALL = (
    SsimCase(batch=1, height=1, width=1, channels=1),
    SsimCase(batch=2, height=23, width=31),
    SsimCase(batch=2, height=19, width=101, bytes=True, alpha=True, masked=True),
    SsimCase(batch=1, height=37, width=7, channels=5, masked=True, ssim_weight=1.0),
    SsimCase(batch=2, height=12, width=13, strided=True, alpha=True, ssim_weight=0.0),
    SsimCase(batch=1, height=17, width=90, dtype=torch.float16, bytes=True),
    SsimCase(batch=1, height=17, width=20, dtype=torch.bfloat16),
    SsimCase(batch=1, height=40, width=33, dtype=torch.float64, masked=True),
)
"""One pixel, primes, several strips and bands, a view, every kind of target: small enough for a CPU."""

REAL = (
    SsimCase(batch=1, height=270, width=480, bytes=True),
    SsimCase(batch=1, height=840, width=1297, bytes=True, alpha=True, masked=True),
    SsimCase(batch=1, height=1080, width=1920),
    SsimCase(batch=2, height=500, width=700, dtype=torch.float16),
)
"""Pictures of real use: for a card."""
