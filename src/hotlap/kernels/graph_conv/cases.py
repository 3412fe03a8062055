"""The inputs, sizes and tolerances that every implementation of the graph convolution is judged by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hotlap.kernels.agreement import Inputs, in_float64
from hotlap.kernels.graph_conv.reference import graph_conv_ref
from hotlap.kernels.graph_conv.support import Support, support_from_rows

TOLERANCES = {torch.float32: 5e-6, torch.float16: 5e-3, torch.bfloat16: 4e-2}
"""Largest error over the largest number, of output and gradients.

Float32: a sum of up to 3075 products in any order is some 1e-6 off. Float16 and bfloat16 round the product x W, the
result and each gradient, by 2^-11 and 2^-8 of numbers up to four times the result; ten such roundings are allowed.
"""


@dataclass(frozen=True, kw_only=True)
class GraphConvCase:
    """One layer on one graph."""

    rows: int
    """Graphs of a batch."""
    vertices: int
    """Of a graph."""
    features: int
    """Of a vertex, coming in."""
    outputs: int
    """Of a vertex, going out."""
    reach: int = 3
    """A vertex is joined to so many on either side of it, around a ring; at least half the vertices: to all."""
    relu: bool = True
    """Cut off below 0."""
    residual: bool = False
    """Something is added, and half of the sum is taken."""
    strided: bool = False
    """x is a view with gaps."""
    dtype: torch.dtype = torch.float32
    """Of x, weight, bias and residual."""

    @property
    def id(self) -> str:
        words = [f"r{self.rows}", f"v{self.vertices}", f"{self.features}to{self.outputs}"]
        words += [word for word in ("relu", "residual", "strided") if getattr(self, word)]
        return "-".join([*words, str(self.dtype).removeprefix("torch.")])

    @property
    def tolerance(self) -> float:
        return TOLERANCES[self.dtype]

    def support(self, device: torch.device) -> Support:
        """A ring whose edges have weights of their own, the same from both ends."""
        vertex = torch.arange(self.vertices)[:, None]
        steps = torch.arange(-self.reach, self.reach + 1)
        if 2 * self.reach + 1 >= self.vertices:
            steps = torch.arange(self.vertices)
        columns = (vertex + steps) % self.vertices
        values = torch.cos((vertex + 1.0) * (columns + 1.0)) / len(steps)
        return support_from_rows(columns, values).to(device)

    def make(self, device: torch.device) -> dict[str, Tensor | None]:
        """The inputs by name, the same numbers on every device."""
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(device, self.dtype)

        x = normal(self.rows, self.vertices, 2 * self.features)
        return {
            "x": x[..., ::2] if self.strided else x[..., : self.features].contiguous(),
            "weight": normal(self.features, 2 * self.outputs) / self.features**0.5,
            "bias": normal(self.outputs),
            "residual": normal(self.rows, self.vertices, self.outputs) if self.residual else None,
        }

    @property
    def typical(self) -> dict[str, float]:
        """The size of gradients that are sums of the outputs' weights, which have either sign."""
        return {"grad bias": max(1, self.rows * self.vertices) ** 0.5}

    def decided(self) -> Tensor:  # [R, V, O] float64
        """1 for outputs, 0 for those so near the kink of the cut that rounding decides on which side they lie.

        The gradients of both sides are right there, and far apart.
        """
        if not self.relu:
            return torch.ones(1, dtype=torch.float64)
        made = in_float64(self.make(torch.device("cpu")))
        x, weight, bias = (made[name] for name in ("x", "weight", "bias"))
        assert x is not None and weight is not None and bias is not None
        before = graph_conv_ref(x, weight, bias, self.support(torch.device("cpu")), relu=False)
        return (before.abs() > self.tolerance * max(1.0, before.abs().amax().item() if before.numel() else 0)).double()


def run_conv(
    conv: Callable[..., Tensor], case: GraphConvCase, support: Support
) -> Callable[[Inputs], dict[str, Tensor]]:
    """A function from a case's inputs to the layer's output, and to the part of it that gradients are compared of."""
    decided = case.decided()

    def run(inputs: Inputs) -> dict[str, Tensor]:
        share = 0.5 if case.residual else 1.0
        given = [inputs[name] for name in ("x", "weight", "bias")]
        out = conv(*given, support, relu=case.relu, residual=inputs["residual"], share=share)
        return {"out": out.detach(), "decided": out * decided.to(out.device, out.dtype)}

    return run


SMALL = (
    GraphConvCase(rows=1, vertices=1, features=1, outputs=1, relu=False),
    GraphConvCase(rows=2, vertices=67, features=11, outputs=13, residual=True),
    GraphConvCase(rows=1, vertices=70, features=16, outputs=3, relu=False, strided=True),
    GraphConvCase(rows=5, vertices=43, features=8, outputs=17, residual=True),
    GraphConvCase(rows=2, vertices=43, features=8, outputs=1, reach=40),
    GraphConvCase(rows=2, vertices=43, features=8, outputs=6, dtype=torch.bfloat16),
    GraphConvCase(rows=1, vertices=65, features=8, outputs=6, dtype=torch.float16, residual=True),
    GraphConvCase(rows=0, vertices=43, features=8, outputs=6),
)
"""One, primes, small graphs and larger ones, a view, nothing: small enough for a CPU and for an interpreter."""

REAL = tuple(
    GraphConvCase(rows=rows, vertices=v, features=f, outputs=o, reach=reach, residual=residual, relu=o > 3, dtype=dtype)
    for dtype in TOLERANCES
    for rows, v, f, o, reach, residual in (
        (4, 2466, 192, 192, 4, True),
        (4, 618, 3075, 192, 4, False),
        (1000, 43, 344, 192, 3, False),
        (1000, 43, 192, 192, 21, True),
        (500, 43, 192, 1, 3, False),
        (4, 2466, 192, 3, 4, False),
    )
)
"""Layers of Pixel2Mesh++, in each number format: for a card."""
