"""Convolutions with channels added up to a multiple of eight, as tensor cores want them: three colours are slow."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from hotlap.base.errors import UsageError

MULTIPLE = 8
"""Channels that 16-byte loads of a 2-byte format take at once."""


class PaddedConv2d(nn.Conv2d):
    """The same convolution, computed with zero channels beside its own; a layer is turned into one where it stands."""

    def forward(self, x: Tensor) -> Tensor:  # [n, C, H, W] -> [n, K, H', W']
        return self.convolve(x, self.bias)

    def convolve(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """With this bias, or none."""
        more_in, more_out = -self.in_channels % MULTIPLE, -self.out_channels % MULTIPLE
        weight = F.pad(self.weight, (0, 0, 0, 0, 0, more_in, 0, more_out))
        bias = None if bias is None else F.pad(bias, (0, more_out))
        return self._conv_forward(F.pad(x, (0, 0, 0, 0, 0, more_in)), weight, bias)[:, : self.out_channels]


def odd_convolutions(model: nn.Module) -> list[nn.Conv2d]:
    """The convolutions whose channels, in or out, are no multiple of eight."""
    found = [m for m in model.modules() if type(m) is nn.Conv2d and m.groups == 1]
    return [m for m in found if m.in_channels % MULTIPLE or m.out_channels % MULTIPLE]


def pad_channels(model: nn.Module) -> None:
    """Lets every such convolution compute with more channels; weights, gradients and results stay what they were."""
    layers = odd_convolutions(model)
    if not layers:
        raise UsageError(
            f"option padded: every convolution of {type(model).__name__} has channels by the eight",
            remedy="Leave it out",
        )
    for layer in layers:
        layer.__class__ = PaddedConv2d
