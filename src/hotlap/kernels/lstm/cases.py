"""The inputs, sizes and tolerances that every implementation of the LSTM layer is judged by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hotlap.kernels.agreement import Inputs

TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}
"""Largest error over the largest number, for each output and gradient.

Float32: torch's own layer on a CPU is up to 1e-6 from float64 on the cases of real use; the tolerance leaves room for
sums in another order, and a single pass of TF32, 3e-4 off when emulated, must fail. Float16 and bfloat16 round the
state and the gates' gradients at every step, by 2^-11 and 2^-8, and ten such roundings are allowed. Torch's own layer
on a CPU, on the first two of those cases, is up to 4.3e-3 off in float16 and 3.0e-2 in bfloat16, each time in a
recurrent weight's gradient: so there is little room, and no reason for more.
"""


@dataclass(frozen=True, kw_only=True)
class LstmCase:
    """One set of inputs."""

    batch: int
    """Sequences."""
    steps: int
    """Time steps, padding included."""
    features: int = 24
    """Numbers a step."""
    hidden: int = 64
    """Size of the state."""
    directions: int = 2
    """1: forward only."""
    dtype: torch.dtype = torch.float32
    """Of all floating-point inputs."""
    ragged: bool = False
    """Lengths from 0 to ``steps``, both ends present where there is room."""
    states: bool = False
    """States to start from, other than zero."""
    strided: bool = False
    """The sequences are a view with gaps, batch and time swapped."""

    @property
    def id(self) -> str:
        words = [f"b{self.batch}", f"t{self.steps}", f"f{self.features}", f"h{self.hidden}", f"d{self.directions}"]
        words += [word for word in ("ragged", "states", "strided") if getattr(self, word)]
        return "-".join([*words, str(self.dtype).removeprefix("torch.")])

    @property
    def tolerance(self) -> float:
        return TOLERANCES[self.dtype]

    def make(self, device: torch.device) -> dict[str, Tensor | None]:
        """The inputs by name, the same numbers on every device; weights as ``nn.LSTM`` draws them."""
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(device, self.dtype)

        def uniform(*shape: int) -> Tensor:
            return ((torch.rand(shape, generator=generator) * 2 - 1) / self.hidden**0.5).to(device, self.dtype)

        x = normal(self.batch, self.steps, self.features)
        if self.strided:
            x = normal(self.steps, self.batch, 2 * self.features)[..., ::2].transpose(0, 1)
        made: dict[str, Tensor | None] = {"x": x, "lengths": None, "h0": None, "c0": None}
        if self.ragged:
            lengths = torch.randint(0, self.steps + 1, (self.batch,), generator=generator)
            lengths[: min(2, self.batch)] = torch.tensor([self.steps, 0])[: self.batch]
            made["lengths"] = lengths.to(device)
        if self.states:
            made["h0"] = 0.5 * normal(self.directions, self.batch, self.hidden).tanh()
            made["c0"] = normal(self.directions, self.batch, self.hidden)
        for suffix in ("", "_reverse")[: self.directions]:
            made[f"weight_ih{suffix}"] = uniform(4 * self.hidden, self.features)
            made[f"weight_hh{suffix}"] = uniform(4 * self.hidden, self.hidden)
            made[f"bias_ih{suffix}"], made[f"bias_hh{suffix}"] = uniform(4 * self.hidden), uniform(4 * self.hidden)
        return made


Layer = Callable[[Tensor, Sequence[Tensor], Tensor | None, Tensor | None, Tensor | None], tuple[Tensor, Tensor, Tensor]]


def run_layer(layer: Layer) -> Callable[[Inputs], dict[str, Tensor]]:
    """A function from a case's inputs to the layer's outputs by name."""

    def run(inputs: Inputs) -> dict[str, Tensor]:
        x = inputs["x"]
        assert x is not None
        weights = [t for name, t in inputs.items() if name.startswith(("weight", "bias")) and t is not None]
        out, h_n, c_n = layer(x, weights, inputs["lengths"], inputs["h0"], inputs["c0"])
        return {"out": out, "h_n": h_n, "c_n": c_n}

    return run


SMALL = (
    LstmCase(batch=0, steps=3),
    LstmCase(batch=3, steps=0, states=True),
    LstmCase(batch=1, steps=1, features=1, hidden=1, directions=1),
    LstmCase(batch=5, steps=5, features=11, hidden=13, ragged=True, states=True),
    LstmCase(batch=5, steps=7, features=11, hidden=13, ragged=True, dtype=torch.bfloat16),
    LstmCase(batch=17, steps=2, hidden=32, states=True),
    LstmCase(batch=3, steps=4, hidden=16, directions=1, ragged=True, strided=True),
    LstmCase(batch=9, steps=3, hidden=48, ragged=True, states=True),
    LstmCase(batch=4, steps=6, hidden=16, dtype=torch.float16, states=True),
)
"""Nothing, one, primes, sizes that fill no tile, a view: small enough for a CPU and for an interpreter."""

REAL = tuple(
    LstmCase(batch=batch, steps=steps, features=features, hidden=hidden, ragged=ragged, states=states, dtype=dtype)
    for dtype in TOLERANCES
    for batch, steps, features, hidden, ragged, states in (
        (64, 128, 128, 256, True, False),
        (37, 50, 512, 200, True, True),
        (64, 64, 32, 48, True, False),
        (100, 33, 64, 128, False, True),
    )
)
"""Sizes of real use, the ``bilstm`` target's first, in each number format: for a card."""
