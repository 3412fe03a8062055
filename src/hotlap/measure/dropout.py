"""Dropout whose masks belong to samples, not to batches: however a batch is split, each sample loses the same units.

A mask bit is a hash of (step, layer, call, sample, element). Nothing is drawn from a generator, so nothing has to be
wound back when a step is replayed, and processes that share a batch agree with one process that has it all.
"""

from __future__ import annotations

import numpy
import torch
from torch import Tensor, nn

from hotlap.base.errors import UsageError
from hotlap.kernels.dropout.cuda import write_seeds
from hotlap.kernels.dropout.op import keyed_dropout
from hotlap.kernels.dropout.reference import ODD, place_numbers

KEYED_KINDS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""Layers that are replaced; those of a type derived from them are left alone."""


class StepKey:
    """Which step and which sample of its effective batch the model is working on; shared by all its dropout layers."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._step = self._first_sample = 0
        self.num_samples = 0
        self.layers: list[KeyedDropout] = []
        self._room: dict[int, Tensor] = {}
        # A tensor, so that a compiled model sees the same graph in every step; made once for all layers.
        self.seeds = self.seeds_of(0)

    def set_step(self, key: int) -> None:
        """Before the first part of a step."""
        self._step, self.num_samples = key, 0

    def set_part(self, first_sample: int, num_samples: int) -> None:
        """Before each forward pass: the place in the effective batch of the first sample it gets, and how many."""
        self._first_sample, self.num_samples = first_sample, num_samples
        self.use(self._made(first_sample, num_samples))

    def _made(self, first: int, num: int) -> Tensor:
        """The seeds of a part, in few calls: every step waits for them."""
        if self._device.type != "cuda":
            return torch.from_numpy(_seeds_on_host(first, num, self._step))
        # Written over in the next part, behind whatever this one has the card do.
        room = self._room.get(num)
        if room is None:
            self._room[num] = room = torch.empty(num, dtype=torch.int32, device=self._device)
        if write_seeds(room, first, self._step):
            return room
        # On the host: a dozen operations on a few numbers cost a card more in launches than one copy does.
        seeds = torch.from_numpy(_seeds_on_host(first, num, self._step))
        return seeds.pin_memory().to(self._device, non_blocking=True)

    def use(self, seeds: Tensor) -> None:
        """Takes the masks of the coming forward pass from ``seeds``, such as a recorded pass reads them from."""
        self.seeds = seeds
        for layer in self.layers:
            layer.__dict__["num_calls"] = 0  # a module looks for parameters and submodules in whatever it is given

    def seeds_of(self, num: int) -> Tensor:
        """A number for each of ``num`` samples in this step, from the part's first one on."""
        first = self._first_sample
        sample = torch.arange(first, first + num, dtype=torch.int32, device=self._device)
        return _seeds(sample, self._step)


class KeyedDropout(nn.Module):
    """Zeroes a share ``p`` of the units (or of whole channels) of each sample and scales up the rest."""

    def __init__(self, p: float, *, by_channel: bool) -> None:
        super().__init__()
        self.p, self.by_channel = p, by_channel
        self.num_calls = 0
        self.is_odd = False
        """Whether it has met an input whose first dimension does not go by sample."""
        self.is_replayed = False
        """While a block is computed again by :mod:`hotlap.measure.recompute`, which keeps count of the calls."""
        self._places: dict[tuple[int, int], Tensor] = {}

    def join(self, key: StepKey) -> None:
        """From now on ``key`` says which step and which samples these are."""
        self.key, self.salt = key, len(key.layers)
        key.layers.append(self)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if self.p >= 1:
            return x * 0
        start = _start_of(self.salt * 1013 + self._call())
        seeds = self._seeds_for(x.shape[0])
        return keyed_dropout(x, seeds, start, self.p, by_channel=self.by_channel, places=self._place)

    def _call(self) -> int:
        """Which call of this forward pass it is, from 1.

        A model may checkpoint activations itself; its layers are then called again during the backward pass.
        """
        if torch.compiler.is_compiling():
            self.num_calls += 1
            return self.num_calls
        if self.is_replayed or torch._C._current_graph_task_id() == -1:
            self.__dict__["num_calls"] = call = self.num_calls + 1
            return call
        if self.num_calls > 1:
            raise UsageError(
                f"a dropout layer (p = {self.p}) is called {self.num_calls} times in one forward pass, and again "
                "by the model's own activation checkpointing, so that its calls cannot be told apart",
                remedy="Give each place a dropout layer of its own, or leave the checkpointing to --recompute on",
            )
        return 1

    def _seeds_for(self, rows: int) -> Tensor:
        """A seed for each sample, or for each of ``rows`` where these do not go by sample."""
        if self.key.num_samples > 0 and rows % self.key.num_samples == 0:
            return self.key.seeds
        self.is_odd = self.is_odd or self.key.num_samples > 0
        return self.key.seeds_of(rows)

    def _place(self, start: int, width: int, device: torch.device) -> Tensor:
        """A number for each element of a sample, the same in every step and therefore kept."""
        kept = self._places.get((width, start))
        if kept is None or kept.device != device:
            self._places[width, start] = kept = place_numbers(start, width, device)
        return kept

    def extra_repr(self) -> str:
        return f"p={self.p}, by_channel={self.by_channel}"


def _seeds(sample: Tensor, step: int) -> Tensor:  # [n] int32 -> the same
    return _mix(_mix(sample * ODD + step))


def _mix(x: Tensor) -> Tensor:
    """A 32-bit integer hash, element by element; products wrap around, and the masks keep sign bits out."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x7FEB352D
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * -2073254261
    return x ^ ((x >> 16) & 0xFFFF)


def _seeds_on_host(first: int, num: int, step: int) -> numpy.typing.NDArray[numpy.int32]:
    """What :func:`_seeds` makes of consecutive samples, in place and in few calls: every step waits for it."""
    x = numpy.arange(first, first + num, dtype=numpy.uint32)
    x *= _UNSIGNED_ODD
    x += numpy.uint32(step & 0xFFFFFFFF)
    for _ in range(2):
        x ^= x >> _SIXTEEN
        x *= _FACTORS[0]
        x ^= x >> _FIFTEEN
        x *= _FACTORS[1]
        x ^= x >> _SIXTEEN
    return x.view(numpy.int32)


_UNSIGNED_ODD = numpy.uint32(ODD & 0xFFFFFFFF)
_FACTORS = numpy.uint32(0x7FEB352D), numpy.uint32(0x846CA68B)
_FIFTEEN, _SIXTEEN = numpy.uint32(15), numpy.uint32(16)


def _start_of(number: int) -> int:
    """What :func:`_mix` makes of ``number * ODD``, reckoned without a device to wait for."""
    x = number * ODD & 0xFFFFFFFF
    x = (x ^ x >> 16) * 0x7FEB352D & 0xFFFFFFFF
    x = (x ^ x >> 15) * -2073254261 & 0xFFFFFFFF
    x ^= x >> 16
    return x - (x >> 31 << 32)


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
