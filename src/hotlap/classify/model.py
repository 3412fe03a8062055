"""Image classifiers: torchvision's ResNets, timm's ViTs, and a tiny network of our own that needs neither."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from hotlap.base.errors import ConfigError, EnvironmentUnusable, UnknownName, did_you_mean

TINY = "tiny"
RESNETS = ("resnet18", "resnet50")
VIT_PREFIX = "vit_"
VITS = ("vit_tiny_patch16_224", "vit_small_patch16_224")
"""Those we name; any other name of timm's that begins with vit_ is taken too."""
NORMS = ("batch", "group")
_RESNET_GROUPS, _TINY_GROUPS = 32, 8


class TinyNet(nn.Module):
    """Class scores of an image from four 3x3 convolutions, each halving it: 0.1 M parameters, for tests and trials."""

    def __init__(self, *, classes: int, norm_layer: Callable[[int], nn.Module]) -> None:
        super().__init__()
        widths = (16, 32, 64, 128)
        layers: list[nn.Module] = []
        for before, after in zip((3, *widths), widths, strict=False):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False), norm_layer(after), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, image: Tensor) -> Tensor:  # [n, 3, H, W] -> [n, classes]
        return self.head(self.features(image).mean((2, 3)))


def check_model(name: str, norm: str) -> None:
    """Refuses an unknown name and a norm that the model has no place for; imports nothing."""
    if name not in (TINY, *RESNETS) and not name.startswith(VIT_PREFIX):
        remedy = did_you_mean(name, (TINY, *RESNETS, *VITS))
        raise UnknownName(f"model = {name!r} is not known", remedy=remedy)
    if norm not in NORMS:
        raise ConfigError(f"norm = {norm!r} is not valid", expected=f"one of {', '.join(NORMS)}")
    if norm != NORMS[0] and name.startswith(VIT_PREFIX):
        raise ConfigError(
            f"norm = {norm!r} does not fit model = {name!r}, which normalises each token by itself",
            remedy="Leave norm out; a ViT's batch can be split exactly as it is",
        )


def build_classifier(name: str, *, classes: int, size: int, norm: str) -> nn.Module:
    """A classifier of images [n, 3, size, size] with fresh weights."""
    check_model(name, norm)
    if name == TINY:
        return TinyNet(classes=classes, norm_layer=_norm_layer(norm, _TINY_GROUPS))
    if name in RESNETS:
        make = getattr(import_vision("torchvision.models", name), name)
        return make(num_classes=classes, norm_layer=_norm_layer(norm, _RESNET_GROUPS))
    timm = import_vision("timm", name)
    known = timm.list_models(f"{VIT_PREFIX}*")
    if name not in known:
        raise UnknownName(f"model = {name!r} is not known to timm {timm.__version__}", remedy=did_you_mean(name, known))
    return timm.create_model(name, num_classes=classes, img_size=size)


def import_vision(module: str, wanted_by: str) -> Any:
    """A module of torchvision or timm, which the core does without."""
    import importlib

    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise EnvironmentUnusable(
            f"{wanted_by} needs {package}, which is not installed", remedy="pip install 'hotlap[vision]'"
        ) from error


def _norm_layer(norm: str, groups: int) -> Callable[[int], nn.Module]:
    return nn.BatchNorm2d if norm == "batch" else partial(nn.GroupNorm, groups)
