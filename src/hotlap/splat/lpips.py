"""LPIPS, how unlike two pictures look to a network, where the network's weights are at hand; nothing is downloaded.

Two files are needed: AlexNet's weights as torchvision publishes them, and how much each of its features counts, which
the package ``lpips`` brings with it (neither torchvision nor that package is run).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hotlap.base.errors import ConfigError

NET = "alex"
ALEXNET = "alexnet-owt-7be5be79.pth"
"""The file's name, as torch keeps it in its cache and at download.pytorch.org/models/."""
HEADS = "alex.pth"
"""LPIPS's own weights, version 0.1."""
LAYERS = {0: (3, 64, 11, 4, 2), 3: (64, 192, 5, 1, 2), 6: (192, 384, 3, 1, 1), 8: (384, 256, 3, 1, 1),
          10: (256, 256, 3, 1, 1)}  # fmt: skip
"""Convolutions by their number in torchvision's AlexNet: channels in and out, size, stride, padding."""
POOLED = (3, 6)
"""Those that see the largest of 3 x 3 numbers, every other one."""
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
LEAST_SIDE = 31
"""Smaller pictures leave nothing of themselves for the last layers."""


class Lpips(nn.Module):
    """The distance of two pictures, 0 for equal ones."""

    shift: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(
            {str(at): nn.Conv2d(*made[:3], stride=made[3], padding=made[4]) for at, made in LAYERS.items()}
        )
        self.heads = nn.ParameterList([nn.Parameter(torch.zeros(made[1])) for made in LAYERS.values()])
        self.register_buffer("shift", torch.tensor(SHIFT).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("scale", torch.tensor(SCALE).view(1, 3, 1, 1), persistent=False)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:  # [B, 3, H, W] in 0 to 1 each -> [B]
        total = torch.zeros(len(first), device=first.device)
        for weights, one, other in zip(self.heads, self._features(first), self._features(second), strict=True):
            apart = (_unit(one) - _unit(other)).square() * weights.view(1, -1, 1, 1)
            total = total + apart.sum(1).mean((1, 2))
        return total

    def _features(self, picture: Tensor) -> list[Tensor]:
        found, at = [], (2 * picture - 1 - self.shift) / self.scale
        for number, layer in self.layers.items():
            if int(number) in POOLED:
                at = nn.functional.max_pool2d(at, 3, 2)
            at = torch.relu(layer(at))
            found.append(at)
        return found


def _unit(features: Tensor) -> Tensor:  # [B, C, H, W]
    return features / (features.square().sum(1, keepdim=True).sqrt() + 1e-10)


def find_weights(named: str = "") -> tuple[Path, Path]:
    """The files of AlexNet's weights and of LPIPS's own; some may not be there."""
    place = Path(named) if named else Path(torch.hub.get_dir()) / "checkpoints" / ALEXNET
    folder = place if place.is_dir() else place.parent
    alexnet = place / ALEXNET if place.is_dir() else place
    package = find_spec("lpips")
    inside = list(package.submodule_search_locations or []) if package is not None else []
    known = [folder / HEADS, *(Path(one) / "weights" / "v0.1" / HEADS for one in inside)]
    return alexnet, next((path for path in known if path.is_file()), known[0])


@cache
def why_no_lpips(named: str = "") -> str:
    """Why LPIPS cannot be computed here; '' if it can."""
    alexnet, heads = find_weights(named)
    if not alexnet.is_file():
        where = f"put https://download.pytorch.org/models/{ALEXNET} there, or name it with --lpips-weights"
        return f"AlexNet's weights are not at {str(alexnet)!r}; {where}"
    if not heads.is_file():
        return f"LPIPS's own weights are not at {str(heads)!r}; pip install --no-deps lpips brings them"
    try:
        load_lpips(named, "cpu")
    except ConfigError as error:
        return str(error)
    return ""


@cache
def load_lpips(named: str, device: str) -> Lpips:
    """The network with its weights, on a device."""
    alexnet, heads = find_weights(named)
    net, convolutions, counts = Lpips(), _read(alexnet), _read(heads)
    for number in LAYERS:
        for part in ("weight", "bias"):
            own = getattr(net.layers[str(number)], part)
            _fill(own, convolutions, f"features.{number}.{part}", alexnet)
    for number, own in enumerate(net.heads):
        _fill(own, counts, f"lin{number}.model.1.weight", heads)
    return net.requires_grad_(False).to(device).eval()


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a file that is none fails in many ways
        raise ConfigError(f"{str(path)!r} holds no weights: {str(error).splitlines()[0][:200]}") from error
    return found if isinstance(found, Mapping) else {}


def _fill(own: Tensor, found: Mapping[str, Any], name: str, path: Path) -> None:
    given = found.get(name)
    if not isinstance(given, Tensor) or given.numel() != own.numel():
        shape = list(given.shape) if isinstance(given, Tensor) else "missing"
        raise ConfigError(f"{name} in {str(path)!r} is {shape}", expected=f"{own.numel()} numbers")
    with torch.no_grad():
        own.copy_(given.reshape(own.shape))


@torch.no_grad()
def lpips_of(drawn: Tensor, photograph: Tensor, named: str = "") -> float | None:  # [H, W, 3] in 0 to 1, uint8
    """The distance of a picture from its photograph; None for one that is too small."""
    if min(drawn.shape[:2]) < LEAST_SIDE:
        return None
    pair = [picture.permute(2, 0, 1)[None] for picture in (drawn, photograph.to(drawn.dtype) / 255)]
    return float(load_lpips(named, str(drawn.device))(*pair))
