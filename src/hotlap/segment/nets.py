"""The networks that see cells, by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hotlap.base.errors import ConfigError, EnvironmentUnusable, UnknownName, UsageError, did_you_mean
from hotlap.segment.heads import MARK, head_maps, usual_head
from hotlap.segment.hrnet import HRNet
from hotlap.segment.layers import FittedNet
from hotlap.segment.ma_resunet import MAResUNet
from hotlap.segment.model import UNet
from hotlap.segment.resunet_small import ResUNetSmall

SMP = "smp:"
"""Begins the name of a network of segmentation_models_pytorch: smp:unetplusplus/resnet34."""
NETS: dict[str, Callable[..., nn.Module]] = {
    "hrnet": HRNet,
    "resunet-small": ResUNetSmall,
    "ma-resunet": MAResUNet,
    "unet": lambda *, in_channels, maps, width: UNet(classes=maps, width=width, channels=in_channels),
}
WIDTHS = {"hrnet": 48, "resunet-small": 48, "ma-resunet": 64, "unet": 64}
"""Channels of the first level as published; all other levels follow from them."""
LEAST = {"hrnet": 4, "resunet-small": 6, "ma-resunet": 2, "unet": 1}
"""A width below which a layer would have no channels, or a norm none to work on."""

LEAST_SIDES = {"pan": 128}
"""Of segmentation_models_pytorch: PAN halves a sixteenth of the picture three times more, and needs a pixel there."""


def build_net(name: str, *, in_channels: int = 3, maps: int = 1, width: int | None = None) -> nn.Module:
    """A network with fresh weights; it turns images [n, in_channels, H, W] of any size into scores [n, maps, H, W].

    A score above 0 means more likely than not. ``width`` is the first level's; by default the published one.
    """
    for what, value in {"in_channels": in_channels, "maps": maps}.items():
        if value < 1:
            raise ConfigError(f"{what} = {value} is not valid", expected="at least 1")
    if name.startswith(SMP):
        if width is not None:
            raise ConfigError(f"width = {width} with model {name!r}", expected="no width: its encoder decides")
        return _FromSmp(name, in_channels=in_channels, maps=maps)
    check_name(name)
    if width is not None and width < LEAST[name]:
        raise ConfigError(f"width = {width} is not valid for {name!r}", expected=f"at least {LEAST[name]}")
    return NETS[name](in_channels=in_channels, maps=maps, width=WIDTHS[name] if width is None else width)


def check_name(name: str) -> None:
    """Refuses a name that is none of the networks here."""
    if name not in NETS:
        raise UnknownName(
            f"unknown model {name!r}",
            expected=f"{', '.join(NETS)} or {SMP}ARCHITECTURE/ENCODER",
            remedy=did_you_mean(name, NETS),
        )


def build_head(name: str, head: str, *, width: int | None = None) -> nn.Module:
    """A network with fresh weights for the maps of a head, which can be told from its weights."""
    names = head_maps(head)
    net = build_net(name, maps=len(names), width=width)
    if usual_head(len(names)) != head:
        net.register_buffer(MARK + head, torch.zeros(1))
    return net


class _FromSmp(FittedNet):
    """A network of segmentation_models_pytorch, with fresh weights, that takes images of any size."""

    stride = 32

    def __init__(self, name: str, *, in_channels: int, maps: int) -> None:
        super().__init__()
        try:
            smp = importlib.import_module("segmentation_models_pytorch")
        except ModuleNotFoundError as error:
            raise EnvironmentUnusable(
                f"model {name!r} needs segmentation_models_pytorch, which is not installed",
                remedy="pip install 'hotlap[smp]'",
            ) from error
        self.name = name
        architecture, _, encoder = name.removeprefix(SMP).partition("/")
        self.least = LEAST_SIDES.get(architecture.lower(), 1)
        make = partial(
            smp.create_model, architecture, encoder or "resnet34", encoder_weights=None, in_channels=in_channels,
            classes=maps,
        )  # fmt: skip
        try:
            self.net = _of_any_size(make) if architecture.lower() == "dpt" else make()
        except (KeyError, ValueError, RuntimeError) as error:
            raise UnknownName(
                f"model {name!r} is not one of segmentation_models_pytorch: {error}",
                expected=f"{SMP}ARCHITECTURE/ENCODER, such as {SMP}unet/resnet34",
            ) from error

    def forward(self, image: Tensor) -> Tensor:
        """Smaller images than it can see are extended as others are, and the scores cut back."""
        height, width = image.shape[-2:]
        below, beside = max(0, self.least - height), max(0, self.least - width)
        if below or beside:
            image = F.pad(image, (0, beside, 0, below), mode="replicate")
        return super().forward(image)[..., :height, :width]

    def scores(self, image: Tensor) -> Tensor:
        try:
            found: Tensor = self.net(image)
        except AssertionError as error:  # how timm refuses a size
            height, width = image.shape[-2:]
            raise UsageError(
                f"model {self.name!r} cannot see images of {height}x{width}: {error}",
                expected="an encoder for images of any size",
                remedy="Most with convolutions are, as resnet34, and of transformers mit_b0",
            ) from error
        return found


def _of_any_size(make: Callable[..., nn.Module]) -> nn.Module:
    """A vision transformer: for one size unless it is told otherwise, which not every one can be."""
    try:
        return make(dynamic_img_size=True)
    except TypeError:
        return make()
