"""Transposed convolutions whose windows do not overlap, as one matrix product: each pixel becomes a block."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from hotlap.base.errors import UsageError


class ShuffledConvTranspose2d(nn.ConvTranspose2d):
    """The same layer as a product and a change of places; a layer is turned into one where it stands.

    cuDNN runs it as the backward pass of a convolution, and its backward pass as two more; a product of matrices has
    none of their overlap to care for, and a compiler puts the change of places into the work that reads it.
    """

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:  # [n, C, H, W] -> [n, K, pH, qW]
        if output_size is not None or x.dim() != 4:
            return super().forward(x, output_size)
        n, _, height, width = x.shape
        k, (p, q) = self.out_channels, (self.stride[0], self.stride[1])
        weight = self.weight.permute(2, 3, 1, 0).reshape(p * q * k, self.in_channels)
        bias = None if self.bias is None else self.bias.repeat(p * q)
        blocks = F.linear(x.permute(0, 2, 3, 1), weight, bias).view(n, height, width, p, q, k)
        if x.is_contiguous():
            return blocks.permute(0, 5, 1, 3, 2, 4).reshape(n, k, height * p, width * q)
        return blocks.transpose(2, 3).reshape(n, height * p, width * q, k).permute(0, 3, 1, 2)


def block_convolutions(model: nn.Module) -> list[nn.ConvTranspose2d]:
    """The transposed convolutions whose stride is their kernel, and which cut nothing off."""
    found = [m for m in model.modules() if type(m) is nn.ConvTranspose2d and m.groups == 1]
    return [m for m in found if m.kernel_size == m.stride and not any(m.padding) and not any(m.output_padding)
            and set(m.dilation) == {1}]  # fmt: skip


def shuffle_blocks(model: nn.Module) -> None:
    """Lets every such layer compute by a matrix product; weights, gradients and results stay what they were."""
    layers = block_convolutions(model)
    if not layers:
        raise UsageError(
            f"option shuffled: {type(model).__name__} has no transposed convolution whose stride is its kernel",
            remedy="Leave it out",
        )
    for layer in layers:
        layer.__class__ = ShuffledConvTranspose2d
