"""The picture half of Pixel2Mesh++: 18 convolutions without normalisation, read out at six sizes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hotlap.measure.folded import has_one_kernel, layer_relu

GROUPS: tuple[tuple[tuple[int, int], ...], ...] = (
    ((16, 3), (16, 3)),
    ((32, 3), (32, 3), (32, 3)),
    ((64, 3), (64, 3), (64, 3)),
    ((128, 3), (128, 3), (128, 3)),
    ((256, 5), (256, 3), (256, 3)),
    ((512, 5), (512, 3), (512, 3), (512, 3)),
)
"""Channels and kernel of each convolution; each group but the first begins by halving the picture."""
CHANNELS = tuple(group[-1][0] for group in GROUPS)


class CNN18(nn.Module):
    """Feature maps of a picture with 16, 32, 64, 128, 256 and 512 channels, each half the size of the one before.

    It has 12,843,632 parameters. Strides pad as TensorFlow does, more behind than before, so that published weights
    fit.
    """

    def __init__(self) -> None:
        super().__init__()
        before, groups = 3, []
        for number, group in enumerate(GROUPS):
            layers = []
            for place, (channels, kernel) in enumerate(group):
                halves = number > 0 and place == 0
                layers.append(
                    nn.Conv2d(before, channels, kernel, stride=2 if halves else 1, padding=0 if halves else kernel // 2)
                )
                before = channels
            groups.append(nn.ModuleList(layers))
        self.groups = nn.ModuleList(groups)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        self.to(memory_format=torch.channels_last)
        self._fuses: dict[tuple[int, torch.dtype], bool] | None = None
        """Whether a layer and its ReLU are one kernel in a format, by the layer's number; None: not to be tried."""

    def use_kernels(self) -> None:
        """From now on a layer and its ReLU are one kernel of cuDNN's where autocast and no gradient allow it."""
        self._fuses = {}

    def forward(self, image: Tensor, num_maps: int = 6) -> list[Tensor]:  # [n, 3, H, W]
        """The first ``num_maps`` maps, the finest first."""
        x = image.contiguous(memory_format=torch.channels_last)
        maps, number = [], 0
        for group in list(self.groups)[:num_maps]:
            for layer in group:  # type: ignore[attr-defined]
                x = self._layer(number, layer, _padded(x, layer))
                number += 1
            maps.append(x)
        return maps

    def _layer(self, number: int, layer: nn.Conv2d, x: Tensor) -> Tensor:
        """A convolution and its ReLU."""
        if self._fuses is None or not x.is_cuda or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return F.relu(layer(x), inplace=True)
        dtype = torch.get_autocast_dtype("cuda")
        if not torch.is_autocast_enabled("cuda") or not self._does_fuse(number, layer, x, dtype):
            return F.relu(layer(x), inplace=True)
        return layer_relu(layer, x, dtype=dtype)

    def _does_fuse(self, number: int, layer: nn.Conv2d, x: Tensor, dtype: torch.dtype) -> bool:
        """Tried once, on the first pictures."""
        assert self._fuses is not None
        if (number, dtype) not in self._fuses:
            self._fuses[number, dtype] = has_one_kernel(layer, x, dtype)
        return self._fuses[number, dtype]


def _padded(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """What a halving convolution reads: TensorFlow's "SAME" puts (k - 2) / 2 before, rounded down, and the rest behind.

    That is for even sides; an odd one has as much before as behind.
    """
    if layer.stride[0] == 1:
        return x
    kernel = layer.kernel_size[0]
    pads = []
    for side in (x.shape[3], x.shape[2]):
        total = max(0, kernel - (2 if side % 2 == 0 else 1))
        pads += [total // 2, total - total // 2]
    return F.pad(x, pads)
