"""U-Net: an encoder that halves the picture four times, a decoder that doubles it back, and a skip at each level."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 4


class UNet(nn.Module):
    """Class scores for every pixel of an image.

    With width 64 and 3 classes it has 31,043,651 parameters. Any height and width work: sides that are not a multiple
    of 16 are extended by repeating the last row and column, and the scores are cut back.
    """

    def __init__(self, *, classes: int, width: int = 64, channels: int = 3) -> None:
        super().__init__()
        widths = [width << level for level in range(LEVELS + 1)]
        self.encoders = nn.ModuleList(
            _double_conv(before, after) for before, after in zip([channels, *widths], widths[:-1], strict=False)
        )
        self.bottleneck = _double_conv(widths[-2], widths[-1])
        self.upsamplers = nn.ModuleList(
            nn.ConvTranspose2d(2 * w, w, kernel_size=2, stride=2) for w in reversed(widths[:-1])
        )
        self.decoders = nn.ModuleList(_double_conv(2 * w, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, kernel_size=1)

    def forward(self, image: Tensor) -> Tensor:  # [n, channels, H, W] -> [n, classes, H, W]
        height, width = image.shape[-2:]
        multiple = 1 << LEVELS
        x = image
        if height % multiple or width % multiple:
            x = F.pad(x, (0, -width % multiple, 0, -height % multiple), mode="replicate")
        skips = []
        for encoder in self.encoders:
            x = encoder(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottleneck(x)
        for upsample, decoder in zip(self.upsamplers, self.decoders, strict=True):
            x = decoder(torch.cat([upsample(x), skips.pop()], dim=1))
        return self.head(x)[..., :height, :width]


def _double_conv(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, kernel_size=3, padding=1),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
        nn.Conv2d(after, after, kernel_size=3, padding=1),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
    )
