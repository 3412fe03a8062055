"""Layers that work on a mesh: graph convolutions, and what they need of the mesh as part of a model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hotlap.kernels.graph_conv.op import graph_conv, graph_mix
from hotlap.kernels.graph_conv.support import Support
from hotlap.mesh.template import Level

PLAIN = "reference"
"""The implementation of kernels until a model is told to use its own."""
PASSED = 6
"""Channels that carry a vertex's coordinates through fresh layers: each as its positive and its negative part."""


class GraphConv(nn.Module):
    """A graph convolution with two supports: 2 * F * O + O parameters."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(features, 2 * outputs))  # for the vertex itself, and for the support
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.impl = PLAIN
        bound = (6 / (features + outputs)) ** 0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def use_kernels(self) -> None:
        """From now on the layer is run by the first kernel that can run where it is."""
        self.impl = "auto"

    def forward(
        self,
        x: Tensor,  # [..., V, F]
        support: Support,
        *,
        relu: bool = True,
        residual: Tensor | None = None,  # [..., V, O]
        share: float = 1.0,
    ) -> Tensor:
        """share * (relu(convolution) + residual) [..., V, O]."""
        return graph_conv(x, self.weight, self.bias, support, relu=relu, residual=residual, share=share, impl=self.impl)

    def mix(self, y: Tensor, support: Support) -> Tensor:  # [..., V, 2 O]
        """The layer's output where its product with the weight has been made already."""
        return graph_mix(y, self.bias, support, impl=self.impl)

    def tail_weight(self, start: int, end: int, tail: int) -> Tensor:  # [end - start + tail, 2 O]
        """Rows ``start`` to ``end`` of the weight, then those before ``start``, then zeros up to ``tail`` more rows."""
        zeros = self.weight.new_zeros(tail - start, self.weight.shape[1])
        return torch.cat([self.weight[start:end], self.weight[:start], zeros])


class MeshBuffers(nn.Module):
    """A level of a template as tensors of a model, which move and are saved with it."""

    vertices: Tensor
    faces: Tensor
    edges: Tensor
    columns: Tensor
    values: Tensor
    dense: Tensor

    def __init__(self, level: Level) -> None:
        super().__init__()
        itself = torch.arange(len(level.vertices), device="cpu")[:, None]
        columns = torch.cat([itself, level.neighbours], 1).int()
        for name, tensor in (
            ("vertices", level.vertices),
            ("faces", level.faces),
            ("edges", level.edges),
            ("columns", columns),
            ("values", level.support),
        ):
            self.register_buffer(name, tensor.clone())
        self.register_buffer("dense", torch.empty(0, 0), persistent=False)

    @property
    def support(self) -> Support:
        return Support(self.columns, self.values, self.dense)

    def halved(self, x: Tensor) -> Tensor:  # [B, V, C] -> [B, V + E, C]
        """What vertices have, and the middles of edges behind them: the next level."""
        first, second = self.edges.unbind(1)
        return torch.cat([x, 0.5 * (x.index_select(1, first) + x.index_select(1, second))], 1)


@torch.no_grad()
def pass_coordinates(first: GraphConv, hidden: Sequence[GraphConv], last: GraphConv, noise: float = 0.01) -> None:
    """Makes fresh layers put out the coordinates they got, rows 0 to 2 of the first weight, and ``noise`` of the rest.

    A network that predicts coordinates outright then starts at its template, not at a point.
    """
    for layer in (first, *hidden):
        outputs = layer.bias.shape[0]
        layer.weight[:, :PASSED] = 0
        layer.weight[:, outputs : outputs + PASSED] = 0
    last.weight.mul_(noise)
    last.weight[:PASSED] = 0
    for axis in range(3):
        for sign, channel in ((1, 2 * axis), (-1, 2 * axis + 1)):
            first.weight[axis, channel] = sign
            last.weight[channel, axis] = sign
            for layer in hidden:
                layer.weight[channel, channel] = 1
