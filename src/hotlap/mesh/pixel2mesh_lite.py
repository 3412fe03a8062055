"""Pixel2Mesh lite: a mesh from one picture, all of which a single vector of features describes."""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from hotlap.base.errors import EnvironmentUnusable
from hotlap.base.shapes import bind_dims
from hotlap.kernels.graph_conv.support import Support
from hotlap.measure.folded import layer_relu
from hotlap.mesh.graph_layers import GraphConv, MeshBuffers
from hotlap.mesh.template import CENTRE, icosphere

HIDDEN = 192
GLOBAL = 2048
RADIUS = 0.25
MEANS, DEVIATIONS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Pixel2MeshLite(nn.Module):
    """A mesh of 2562 vertices and 5120 faces from one picture: ResNet-50 and three residual graph blocks.

    It has 24,346,115 parameters. Pictures are RGB, 0 to 255 as uint8 or 0 to 1; the mesh is in the camera's frame, a
    sphere around (0, 0, -0.8) that is moved vertex by vertex.
    """

    means: Tensor
    deviations: Tensor

    def __init__(self, *, subdivisions: int = 4) -> None:
        super().__init__()
        self.encoder = _resnet50()
        self.mesh = MeshBuffers(icosphere(subdivisions))
        self.mesh.vertices.mul_(RADIUS).add_(self.mesh.vertices.new_tensor(CENTRE))
        self.first = nn.Linear(3 + GLOBAL, HIDDEN)
        self.blocks = nn.ModuleList(ResidualBlock() for _ in range(3))
        self.last = nn.Linear(HIDDEN, 3)
        self.register_buffer("means", torch.tensor(MEANS)[:, None, None])
        self.register_buffer("deviations", torch.tensor(DEVIATIONS)[:, None, None])
        with torch.no_grad():  # fresh networks start at the sphere
            self.last.weight.mul_(0.01)
            self.last.bias.zero_()

    @property
    def faces(self) -> Tensor:
        """[F, 3] of the mesh."""
        return self.mesh.faces

    def forward(self, image: Tensor) -> Tensor:  # [B, 3, H, W]
        """The vertices [B, 2562, 3] in the camera's frame, in float32."""
        bind_dims(image=(image, "B 3 H W"))
        x = image.contiguous(memory_format=torch.channels_last)
        x = x.to(self.means.dtype) / 255 if x.dtype == torch.uint8 else x
        features = self.encoder((x - self.means) / self.deviations)
        # Every vertex has the same features beside its own place, so they are multiplied once an object.
        shared = F.linear(features, self.first.weight[:, 3:], self.first.bias)
        x = torch.relu(shared[:, None] + F.linear(self.mesh.vertices, self.first.weight[:, :3]))
        for block in self.blocks:
            x = block(x, self.mesh.support)
        with torch.autocast(image.device.type, enabled=False):
            return self.mesh.vertices + self.last(x.to(self.last.weight.dtype))


class ResidualBlock(nn.Module):
    """Two graph convolutions and what went into them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GraphConv(HIDDEN, HIDDEN), GraphConv(HIDDEN, HIDDEN)

    def forward(self, x: Tensor, support: Support) -> Tensor:  # [B, V, 192]
        return self.second(self.first(x, support), support, residual=x)


class FoldedBlock(nn.Module):
    """A bottleneck of ResNet-50 with its normalisations folded.

    In 16 bits each convolution takes its bias, what is added and its ReLU along, on a card by one kernel.
    """

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.first: nn.Conv2d = fuse_conv_bn_eval(block.conv1, block.bn1)
        self.second: nn.Conv2d = fuse_conv_bn_eval(block.conv2, block.bn2)
        self.third: nn.Conv2d = fuse_conv_bn_eval(block.conv3, block.bn3)
        self.skip = nn.Identity() if block.downsample is None else fuse_conv_bn_eval(*block.downsample)

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = self.first, self.second, self.third
        if first.weight.dtype == torch.float32:  # for which cuDNN need not have such kernels
            return F.relu(third(F.relu(second(F.relu(first(x))))) + self.skip(x))
        return layer_relu(third, layer_relu(second, layer_relu(first, x)), plus=self.skip(x))


def fold_norms(model: Pixel2MeshLite, dtype: torch.dtype | None = None) -> Pixel2MeshLite:
    """The model with its 53 batch normalisations folded into the convolutions before them, and those in ``dtype``, as
    autocast would have them; for inference only."""
    encoder: Any = model.eval().encoder
    encoder.conv1, encoder.bn1 = fuse_conv_bn_eval(encoder.conv1, encoder.bn1), nn.Identity()
    for stage in (encoder.layer1, encoder.layer2, encoder.layer3, encoder.layer4):
        for place, block in enumerate(stage):
            stage[place] = FoldedBlock(block)
    if dtype is not None:
        encoder.to(dtype)
    return model.to(memory_format=torch.channels_last)


def _resnet50() -> nn.Module:
    """ResNet-50 without its classifier, 23,508,032 parameters."""
    try:
        models: Any = importlib.import_module("torchvision.models")
    except ModuleNotFoundError as error:
        raise EnvironmentUnusable(
            "pixel2mesh-lite needs torchvision, which is not installed", remedy="pip install 'hotlap[vision]'"
        ) from error
    network = models.resnet50(weights=None, zero_init_residual=True)  # fresh features are then of a usual size
    network.fc = nn.Identity()
    return network.to(memory_format=torch.channels_last)
