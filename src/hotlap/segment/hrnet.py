"""HRNetV2: four resolutions side by side, from a quarter of the picture down, that exchange what they see."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hotlap.kernels.enlarge.op import enlarge
from hotlap.segment.layers import RESIDUAL_GAIN, ConvNorm, FittedNet, InstanceNorm, WithKernels, init_he

STEM = 64
EXPANSION = 4
BLOCKS = 4
"""Residual blocks in each branch of a module, and in the first stage."""
MODULES = (1, 4, 3)
"""Modules of the stages with two, three and four branches."""


class HRNet(WithKernels, FittedNet):
    """Scores of each pixel, made at a quarter of the size and enlarged; width 48, one map: 65,846,401 weights."""

    stride = 32

    def __init__(self, *, in_channels: int = 3, maps: int = 1, width: int = 48) -> None:
        super().__init__()
        self.stem = nn.Sequential(ConvNorm(in_channels, STEM, 3, stride=2), ConvNorm(STEM, STEM, 3, stride=2))
        wide = STEM * EXPANSION
        self.first = nn.Sequential(_Bottleneck(STEM), *(_Bottleneck(wide) for _ in range(BLOCKS - 1)))
        widths = [width << level for level in range(len(MODULES) + 1)]
        self.entries = nn.ModuleList([ConvNorm(wide, widths[0], 3), ConvNorm(wide, widths[1], 3, stride=2)])
        self.deeper = nn.ModuleList(ConvNorm(w, 2 * w, 3, stride=2) for w in widths[1:-1])
        self.stages = nn.ModuleList(
            nn.Sequential(*(_Exchange(widths[: number + 2]) for _ in range(modules)))
            for number, modules in enumerate(MODULES)
        )
        total = sum(widths)
        last = nn.Conv2d(total, maps, 1)
        self.head = nn.Sequential(nn.Conv2d(total, total, 1), InstanceNorm(total), nn.ReLU(inplace=True), last)
        init_he(self, last)

    def scores(self, image: Tensor) -> Tensor:
        x = self.first(self.stem(image))
        branches = [entry(x) for entry in self.entries]
        for number, stage in enumerate(self.stages):
            if number:
                branches.append(self.deeper[number - 1](branches[-1]))
            branches = stage(branches)
        size = branches[0].shape[-2:]
        kind = image.device.type
        # Autocast would enlarge in float32, and write twice as much of the same numbers.
        with torch.autocast(kind, enabled=not self.kernels and torch.is_autocast_enabled(kind)):
            joined = torch.cat([branches[0], *(_enlarged(branch, size) for branch in branches[1:])], 1)
        return F.interpolate(self.head(joined), scale_factor=4, mode="bilinear", align_corners=False)


class _Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut, to 256 channels."""

    def __init__(self, before: int) -> None:
        super().__init__()
        after = STEM * EXPANSION
        self.body = nn.Sequential(
            ConvNorm(before, STEM, 1),
            ConvNorm(STEM, STEM, 3),
            ConvNorm(STEM, after, 1, relu=False, gain=RESIDUAL_GAIN),
        )
        self.shortcut = ConvNorm(before, after, 1, relu=False) if before != after else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        narrow, across, wide = self.body
        out: Tensor = wide(across(narrow(x)), self.shortcut(x), relu=True)
        return out


class _Basic(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(ConvNorm(width, width, 3), ConvNorm(width, width, 3, relu=False, gain=RESIDUAL_GAIN))

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.body
        out: Tensor = second(first(x), x, relu=True)
        return out


class _Exchange(WithKernels):
    """Each branch by itself through four blocks, then each as the sum of what all of them see at its resolution."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Sequential(*(_Basic(w) for _ in range(BLOCKS))) for w in widths)
        self.paths = nn.ModuleDict()
        for to, after in enumerate(widths):
            for of, before in enumerate(widths):
                if of > to:
                    self.paths[f"{of}_{to}"] = ConvNorm(before, after, 1, relu=False)
                elif of < to:
                    halvings = [ConvNorm(before, before, 3, stride=2) for _ in range(to - of - 1)]
                    self.paths[f"{of}_{to}"] = nn.Sequential(
                        *halvings, ConvNorm(before, after, 3, stride=2, relu=False)
                    )

    def forward(self, inputs: list[Tensor]) -> list[Tensor]:
        seen = [branch(x) for branch, x in zip(self.branches, inputs, strict=True)]
        return [self._sum_at(to, seen) for to in range(len(seen))]

    def _sum_at(self, to: int, seen: list[Tensor]) -> Tensor:
        total = seen[to]
        for of, x in enumerate(seen[:to]):
            *halvings, last = self.paths[f"{of}_{to}"].children()
            for halve in halvings:
                x = halve(x)
            total = last(x, total)
        parts = [self.paths[f"{of}_{to}"](seen[of]) for of in range(to + 1, len(seen))]
        if self.kernels and parts:
            return enlarge(total, parts, relu=True)
        for part in parts:
            total = total + _enlarged(part, total.shape[-2:])
        return F.relu(total)


def _enlarged(x: Tensor, size: torch.Size) -> Tensor:
    return F.interpolate(x, size=size, mode="bilinear", align_corners=True)
