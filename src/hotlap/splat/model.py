"""Splats as a module: parameters that autograd and any optimizer know."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from hotlap.splat.config import LEARNABLE
from hotlap.splat.rasterize import rasterize


class SplatModule(nn.Module):
    """Draws its splats from the cameras of a batch; what does not learn is a buffer."""

    means: Tensor
    quats: Tensor
    scales: Tensor
    opacities: Tensor
    colors: Tensor

    def __init__(self, start: Mapping[str, Tensor], learn: tuple[str, ...], height: int, width: int) -> None:
        super().__init__()
        self.height, self.width = height, width
        self.sh_degree = int(start["colors"].shape[1] ** 0.5) - 1
        for name in LEARNABLE:
            if name in learn:
                self.register_parameter(name, nn.Parameter(start[name].clone()))
            else:
                self.register_buffer(name, start[name].clone())
        self.background = nn.Parameter(torch.zeros(3))
        """Logits of the colour behind all splats."""

    def forward(self, viewmats: Tensor, Ks: Tensor) -> Tensor:  # [n, 4, 4], [n, 3, 3] -> [n, H, W, 3]
        behind = torch.sigmoid(self.background)[None].expand(len(viewmats), 3)
        image, _, _ = rasterize(
            self.means, self.quats, self.scales, self.opacities, self.colors, viewmats, Ks, self.width, self.height,
            sh_degree=self.sh_degree, raw=True, backgrounds=behind,
        )  # fmt: skip
        return image
