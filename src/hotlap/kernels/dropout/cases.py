"""The inputs, sizes and tolerances that every implementation of dropout by samples is judged by."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hotlap.kernels.agreement import Inputs

F32, F16, BF16, F64 = torch.float32, torch.float16, torch.bfloat16, torch.float64
LAYOUTS = ("plain", "swapped", "channels_last", "permuted", "gaps", "offset")


@dataclass(frozen=True, kw_only=True)
class DropoutCase:
    """One set of inputs."""

    shape: tuple[int, ...]
    """Of ``x``."""
    samples: int
    """That the rows belong to."""
    p: float = 0.5
    """The share that is given up."""
    by_channel: bool = False
    """Whole channels are."""
    dtype: torch.dtype = F32
    """Of ``x``."""
    layout: str = "plain"
    """One of ``LAYOUTS``: how ``x`` lies in memory; 'swapped' has the second dimension outermost, as a recurrent layer
    leaves it, 'offset' begins one element after where memory was aligned."""

    @property
    def id(self) -> str:
        words = ["x".join(map(str, self.shape)), f"n{self.samples}", f"p{self.p:.3g}", self.layout]
        words += ["channels"] if self.by_channel else []
        return "-".join([*words, str(self.dtype).removeprefix("torch.")])

    @property
    def start(self) -> int:
        return -1234567890 + 17 * self.samples

    @property
    def tolerance(self) -> float:
        """Largest error over the largest number, against float64.

        The scale, the product and, in a gradient, the weight are rounded once each, by half an epsilon.
        """
        return 2 * torch.finfo(self.dtype).eps

    def make(self, device: torch.device) -> dict[str, Tensor | None]:
        """The inputs by name, the same numbers on every device; no element of ``x`` is 0."""
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(self.shape, generator=generator, dtype=F64) + 0.5
        seeds = torch.randint(-(2**31), 2**31, (self.samples,), generator=generator).to(device, torch.int32)
        return {"x": _laid_out(x.to(device, self.dtype), self.layout), "seeds": seeds}


def _laid_out(x: Tensor, layout: str) -> Tensor:
    """The same numbers, lying in memory as the layout says."""
    if layout == "swapped":
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "channels_last":
        return x.contiguous(memory_format=torch.channels_last)
    if layout == "permuted":
        return x.permute(2, 0, 3, 1).contiguous().permute(1, 3, 0, 2)
    if layout == "gaps":
        return torch.stack([x, x], dim=-1)[..., 0]
    if layout == "offset":
        flat = torch.empty(math.prod(x.shape) + 1, dtype=x.dtype, device=x.device)
        return flat[1:].view(x.shape).copy_(x)
    return x


def run_dropout(layer: Callable[..., Tensor], case: DropoutCase) -> Callable[[Inputs], dict[str, Tensor]]:
    """A function from a case's inputs to the output by name."""

    def run(inputs: Inputs) -> dict[str, Tensor]:
        return {"out": layer(inputs["x"], inputs["seeds"], case.start, case.p, by_channel=case.by_channel)}

    return run


SMALL = (
    DropoutCase(shape=(0, 5), samples=0),
    DropoutCase(shape=(3, 0), samples=3),
    DropoutCase(shape=(1, 1), samples=1),
    DropoutCase(shape=(7,), samples=7, by_channel=True),
    DropoutCase(shape=(5, 7, 11), samples=5, p=0.1),
    DropoutCase(shape=(6, 1031), samples=3, p=0.9, layout="offset"),
    DropoutCase(shape=(12, 24), samples=4, layout="gaps", dtype=F64),
    DropoutCase(shape=(6, 9, 32), samples=6, layout="swapped"),
    DropoutCase(shape=(6, 3, 5), samples=2, p=0.3, layout="swapped", dtype=BF16),
    DropoutCase(shape=(4, 6, 3, 5), samples=4, by_channel=True),
    DropoutCase(shape=(4, 16, 3, 5), samples=2, by_channel=True, layout="channels_last", dtype=F16),
    DropoutCase(shape=(4, 6, 3, 5), samples=4, p=1 / 3, layout="channels_last", dtype=BF16),
    DropoutCase(shape=(2, 3, 4, 5), samples=2, p=1 / 3, layout="permuted", dtype=F16),
    DropoutCase(shape=(3, 130), samples=3, p=0.999, dtype=F16),
    DropoutCase(shape=(3, 129), samples=1, p=1e-9, dtype=F64),
    DropoutCase(shape=(3, 64), samples=3, p=0.0, dtype=BF16),
)
"""Nothing, one, primes, rows folded into samples, every layout and number format: small enough for a CPU.

A share of a third scales by 1.5, which leaves many products halfway between two numbers.
"""

REAL = tuple(
    DropoutCase(shape=shape, samples=shape[0], by_channel=by_channel, dtype=dtype, layout=layout)
    for dtype in (F32, F16, BF16)
    for shape, by_channel, layout in (
        ((64, 128, 512), False, "swapped"),
        ((61, 197, 768), False, "plain"),
        ((16, 256, 56, 56), True, "channels_last"),
    )
)
"""Sizes of real use, the ``bilstm`` target's first, in the formats that models are trained in: for a card."""
