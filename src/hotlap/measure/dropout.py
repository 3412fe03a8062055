"""Dropout whose masks belong to samples, not to batches: however a batch is split, each sample loses the same units.

A mask bit is a hash of (step, layer, call, sample, element). Nothing is drawn from a generator, so nothing has to be
wound back when a step is replayed, and processes that share a batch agree with one process that has it all.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

KEYED_KINDS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""Layers that are replaced; those of a type derived from them are left alone."""


class StepKey:
    """Which step and which sample of its effective batch the model is working on; shared by all its dropout layers."""

    def __init__(self, device: torch.device) -> None:
        # Tensors, so that a compiled model sees the same graph in every step.
        self.step = torch.zeros((), dtype=torch.int32, device=device)
        self.first_sample = torch.zeros((), dtype=torch.int32, device=device)
        self.layers: list[KeyedDropout] = []

    def set_step(self, key: int) -> None:
        self.step.fill_(key)

    def set_first_sample(self, index: int) -> None:
        """Before each forward pass: the place in the effective batch of the first sample it gets."""
        self.first_sample.fill_(index)
        for layer in self.layers:
            layer.num_calls = 0


class KeyedDropout(nn.Module):
    """Zeroes a share ``p`` of the units (or of whole channels) of each sample and scales up the rest."""

    def __init__(self, p: float, *, by_channel: bool) -> None:
        super().__init__()
        self.p, self.by_channel = p, by_channel
        self.num_calls = 0

    def join(self, key: StepKey) -> None:
        """From now on ``key`` says which step and which samples these are."""
        self.key, self.salt = key, len(key.layers)
        key.layers.append(self)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if self.p >= 1:
            return torch.zeros_like(x)
        self.num_calls += 1
        shape = [*x.shape[:2], *[1] * (x.ndim - 2)] if self.by_channel else list(x.shape)
        keep = self._keep(shape, x.device)
        return torch.where(keep, x, 0) * (1 / (1 - self.p))

    def _keep(self, shape: list[int], device: torch.device) -> Tensor:
        """Which units stay: a boolean tensor of ``shape``."""
        width = 1
        for size in shape[1:]:
            width *= size
        sample = self.key.first_sample + torch.arange(shape[0], dtype=torch.int32, device=device)
        seed = _mix(_mix(sample * _ODD + self.key.step) + (self.salt * 1013 + self.num_calls))
        element = torch.arange(width, dtype=torch.int32, device=device) * _ODD
        bits = _mix(seed[:, None] + element[None, :]) & 0x7FFFFFFF
        return (bits >= round(self.p * 2**31)).view(shape)

    def extra_repr(self) -> str:
        return f"p={self.p}, by_channel={self.by_channel}"


_ODD = -1640531527  # 2**32 divided by the golden ratio, as a signed number: consecutive integers land far apart


def _mix(x: Tensor) -> Tensor:
    """A 32-bit integer hash, element by element; products wrap around, and the shifts bring in no sign bits."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x7FEB352D
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * -2073254261
    return x ^ ((x >> 16) & 0xFFFF)


def key_dropout(model: nn.Module, device: torch.device) -> StepKey | None:
    """Replaces the dropout layers of ``model`` in place; None when it has none. The state dict does not change."""
    key = StepKey(device)
    replaced: dict[nn.Module, KeyedDropout] = {}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is None:
                continue
            if child in replaced:  # a layer used in several places stays one layer
                parent._modules[name] = replaced[child]
            elif isinstance(child, KeyedDropout) or type(child) in KEYED_KINDS:
                parent._modules[name] = replaced[child] = _keyed(child)
                replaced[child].join(key)
    return key if key.layers else None


def _keyed(layer: nn.Module) -> KeyedDropout:
    if isinstance(layer, KeyedDropout):
        return layer
    assert isinstance(layer, KEYED_KINDS)
    return KeyedDropout(layer.p, by_channel=type(layer) is not nn.Dropout).train(layer.training)
