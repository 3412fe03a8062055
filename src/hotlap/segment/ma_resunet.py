"""MA-ResUNet: a residual U-Net with several attentions in each block, and self-attention over the whole picture below.

The self-attention goes through torch's fused attention, so the matrix of all pairs of places (512 MiB an image at
1024x1024 in float32) is never stored.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hotlap.kernels.instance_norm.op import instance_norm
from hotlap.segment.layers import RESIDUAL_GAIN, ConvNorm, Gate, GatedUNet, MeanAndMax, WithKernels

DEPTHS = (2, 2, 3, 3)
"""Blocks of the encoder's levels; each level is twice as wide as the one above."""
DROPOUT = 0.1
HEADS = 8
BIAS_WINDOW = 7
CALM = 1e-4


class MAResUNet(GatedUNet):
    """Scores of each pixel; width 64 and one map give 78,210,661 weights."""

    stride = 16

    def __init__(self, *, in_channels: int = 3, maps: int = 1, width: int = 64) -> None:
        super().__init__()
        widths = [width << level for level in range(len(DEPTHS))]
        self.stem = ConvNorm(in_channels, width, 7)
        self.encoders = nn.ModuleList(
            nn.Sequential(_Block(a, b), *(_Block(b, b) for _ in range(depth - 1)))
            for a, b, depth in zip([width, *widths], widths, DEPTHS, strict=False)
        )
        deepest = 2 * widths[-1]
        self.bottleneck = nn.Sequential(_Block(widths[-1], deepest), _SelfAttention(deepest), _Block(deepest, deepest))
        upwards = widths[::-1]
        self.upsamplers = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in upwards)
        self.gates = nn.ModuleList(Gate(w, _Triplet(), bias=True) for w in upwards)
        self.decoders = nn.ModuleList(nn.Sequential(_Block(2 * w, w), _Block(w, w)) for w in upwards)
        self.end(width, maps)


class _Block(nn.Module):
    """Two 3x3 convolutions and the attentions, around a shortcut."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            ConvNorm(before, after, 3),
            nn.Dropout2d(DROPOUT),
            ConvNorm(after, after, 3, relu=False, gain=RESIDUAL_GAIN),
        )
        self.low = _Low()
        self.triplet = _Triplet()
        self.fusion = ConvNorm(after, after, 1, gain=RESIDUAL_GAIN)
        self.shortcut = ConvNorm(before, after, 1, relu=False) if before != after else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(x)
        out = out + self.fusion(self.triplet(self.low(out)))
        if isinstance(self.shortcut, ConvNorm):
            return self.shortcut(x, out, relu=True)
        return F.relu(out + x)


class _Low(WithKernels):
    """Each number weighed by how low it is among those of its channel and image: a gate without weights."""

    def forward(self, x: Tensor) -> Tensor:  # [n, C, H, W]
        if self.kernels:
            zero = torch.zeros(x.shape[1], device=x.device)
            return x * torch.sigmoid(instance_norm(x, zero - 1, zero, eps=CALM))
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        var, mean = torch.var_mean(wide, (2, 3), correction=0, keepdim=True)
        return x * torch.sigmoid(-((wide - mean) * torch.rsqrt(var + CALM)).to(x.dtype))


class _Triplet(WithKernels):
    """Pixels weighed by three sigmoids: of their row, of their column and of what surrounds them.

    The seven taps lie along the profile; across it, as first published, six of them would only ever see padding.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pool = MeanAndMax()
        self.rows = nn.Conv2d(2, 1, (7, 1), padding=(3, 0), bias=False)
        self.columns = nn.Conv2d(2, 1, (1, 7), padding=(0, 3), bias=False)
        self.places = nn.Conv2d(2, 1, 7, padding=3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        by_row, by_column = self._profiles(x)
        rows = torch.sigmoid(self.rows(self.pool(by_row)))  # [n, 1, H, 1]
        columns = torch.sigmoid(self.columns(self.pool(by_column)))  # [n, 1, 1, W]
        return x * (rows * columns * torch.sigmoid(self.places(self.pool(x))))

    def _profiles(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means over each row [n, C, H, 1] and over each column [n, C, 1, W]."""
        if not self.kernels or x.is_contiguous():
            return x.mean(3, keepdim=True), x.mean(2, keepdim=True)
        # Where channels lie side by side torch's means read a number at a time; matrix products read rows.
        n, channels, height, width = x.shape
        rows = _mean(x.permute(0, 2, 3, 1))  # [n, H, 1, C]
        columns = _mean(x.permute(0, 2, 3, 1).reshape(n, height, -1)).view(n, 1, width, channels)
        return rows.permute(0, 3, 1, 2), columns.permute(0, 3, 1, 2)


def _mean(x: Tensor) -> Tensor:  # [..., N, M] -> [..., 1, M]
    """The mean over the last dimension but one, as a matrix product."""
    count = x.shape[-2]
    # A power of two rounds nothing, and keeps the sum of 16-bit numbers within their range.
    share = 2.0 ** -(count - 1).bit_length()
    return (x.new_full((1, count), share) @ x) * (1 / (share * count))


class _SelfAttention(nn.Module):
    """Every place as a mixture of all places, by eight heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.spread = nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False)
        self.to_qkv = nn.Conv2d(width, 3 * width, 1, bias=False)
        self.project = nn.Conv2d(width, width, 1)
        # The published network counts this table among its weights and never reads it; nor does this one.
        self.register_parameter(
            "position_bias", nn.Parameter(torch.zeros((2 * BIAS_WINDOW - 1) ** 2, HEADS), requires_grad=False)
        )

    def forward(self, x: Tensor) -> Tensor:  # [n, C, H, W]
        n, channels, height, width = x.shape
        qkv = self.to_qkv(self.spread(x))
        # Fused attention wants the numbers of a head side by side, or it would make the matrix of all pairs after all.
        beside = qkv.permute(0, 2, 3, 1).contiguous().view(n, height * width, 3, HEADS, channels // HEADS)
        q, k, v = beside.permute(2, 0, 3, 1, 4).unbind(0)  # [n, heads, places, C / heads]
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, height, width, channels)
        layout = torch.contiguous_format if qkv.is_contiguous() else torch.channels_last
        return self.project(mixed.permute(0, 3, 1, 2).contiguous(memory_format=layout))
