"""The memory format with the channels side by side, which tensor cores want: of images, and of volumes.

Torch has one format for images [n, C, H, W] and another for volumes [n, C, D, H, W], and ``model.to`` takes one of them
for all weights, or fails. Inputs with five dimensions are volumes only where the model has 3-D convolutions: a film of
pictures [n, T, C, H, W] is not, and code that views it as pictures would fail.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    Layout = Mapping[int, torch.memory_format]
    """The format of tensors by their number of dimensions; others stay as they are."""


LAST = {4: "channels_last", 5: "channels_last_3d"}
"""Torch's names of the format, by the number of a tensor's dimensions."""


def channels_last_for(model: nn.Module) -> Layout:
    """The formats of the tensors that the model's convolutions take."""
    return {ndim: _format(name) for ndim, name in LAST.items() if ndim == 4 or has_volumes(model)}


def has_convolutions(model: nn.Module) -> bool:
    """Whether the memory format can matter: the model has 2-D or 3-D convolutions."""
    return _has(model, "2d") or has_volumes(model)


def has_volumes(model: nn.Module) -> bool:
    """Whether it has 3-D convolutions."""
    return _has(model, "3d")


def _has(model: nn.Module, suffix: str) -> bool:
    from torch import nn

    kinds = getattr(nn, f"Conv{suffix}"), getattr(nn, f"ConvTranspose{suffix}")
    return any(isinstance(module, kinds) for module in model.modules())


def laid_out(tensor: Tensor, layout: Layout) -> Tensor:
    """The tensor in the format for its dimensions; numbers that are not floating-point stay as they are."""
    wanted = layout.get(tensor.ndim)
    if wanted is None or not tensor.is_floating_point():
        return tensor
    return tensor.contiguous(memory_format=wanted)


def lay_out(model: nn.Module) -> nn.Module:
    """The same model, its weights and buffers in the formats for it."""
    layout = channels_last_for(model)
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        tensor.data = laid_out(tensor.data, layout)
    return model


def is_channels_last(tensor: Tensor) -> bool | None:
    """Whether channels lie side by side; None where that cannot be told, as of one channel, one pixel or a view."""
    last = LAST.get(tensor.ndim)
    if last is None or tensor.is_contiguous(memory_format=(found := _format(last))) == tensor.is_contiguous():
        return None
    return tensor.is_contiguous(memory_format=found)


def format_of(tensor: Tensor) -> torch.memory_format:
    """The format that a tensor lies in; torch's usual one where it has gaps, or is in both."""
    return _format(LAST[tensor.ndim] if is_channels_last(tensor) else "contiguous_format")


def _format(name: str) -> torch.memory_format:
    import torch

    found: torch.memory_format = getattr(torch, name)
    return found
