"""ResUNet Small: a residual U-Net of five levels, each block weighed by channel and by place, each skip by a gate."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hotlap.segment.layers import RESIDUAL_GAIN, ConvNorm, Gate, GatedUNet, MeanAndMax

RATIOS = (1, 2, 4, 8, 32 / 3)
"""Widths of the levels over the first one's; the bottleneck is twice as wide as the last."""
DROPOUT = 0.15
REDUCTION = 16


class ResUNetSmall(GatedUNet):
    """Scores of each pixel; width 48 and one map give 58,060,957 weights."""

    stride = 32

    def __init__(self, *, in_channels: int = 3, maps: int = 1, width: int = 48) -> None:
        super().__init__()
        widths = [round(width * ratio) for ratio in RATIOS]
        self.stem = nn.Sequential(ConvNorm(in_channels, width, 7), nn.Dropout2d(DROPOUT / 2))
        self.encoders = nn.ModuleList(_Block(a, b) for a, b in zip([width, *widths], widths, strict=False))
        deepest = 2 * widths[-1]
        strong = 1.2 * DROPOUT
        self.bottleneck = nn.Sequential(_Block(widths[-1], deepest, strong), _Block(deepest, deepest, strong))
        upwards = widths[::-1]
        self.upsamplers = nn.ModuleList(
            nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in zip([deepest, *upwards], upwards, strict=False)
        )
        self.gates = nn.ModuleList(Gate(w, _Place(), bias=False) for w in upwards)
        self.decoders = nn.ModuleList(_Block(2 * w, w) for w in upwards)
        self.end(width, maps, nn.Dropout2d(DROPOUT / 2))


class _Block(nn.Module):
    """Two 3x3 convolutions around a shortcut, then weights for the channels and for the places."""

    def __init__(self, before: int, after: int, dropout: float = DROPOUT) -> None:
        super().__init__()
        self.body = nn.Sequential(
            ConvNorm(before, after, 3),
            nn.Dropout2d(dropout / 2),
            ConvNorm(after, after, 3, relu=False, gain=RESIDUAL_GAIN),
            nn.Dropout2d(dropout),
        )
        self.shortcut = nn.Conv2d(before, after, 1, bias=False) if before != after else nn.Identity()
        inner = max(after // REDUCTION, 8)
        self.channels = nn.Sequential(
            nn.Linear(after, inner, bias=False),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout / 2),
            nn.Linear(inner, after, bias=False),
            nn.Sigmoid(),
        )
        self.place = _Place()

    def forward(self, x: Tensor) -> Tensor:
        first, less, second, fewer = self.body
        inner = less(first(x))
        if self.training:
            out = F.relu(fewer(second(inner)) + self.shortcut(x))
        else:
            out = second(inner, self.shortcut(x), relu=True)
        return self.place(out * self.channels(out.mean((2, 3)))[:, :, None, None])


class _Place(nn.Module):
    """Each pixel weighed by the mean and the maximum of the channels around it."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = MeanAndMax()
        self.conv = nn.Conv2d(2, 1, 7, padding=3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.conv(self.pool(x)))
