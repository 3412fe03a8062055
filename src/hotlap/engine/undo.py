"""The way back to the start of a step: randomness, running statistics, loss scale, parameters, optimizer state."""

from __future__ import annotations

import copy
import functools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hotlap.device.host_random import HostRandom
from hotlap.device.memory import is_out_of_memory
from hotlap.engine.sums import local_part


class RandomState:
    """Where every generator stands that a model may draw from: Python's, NumPy's, torch's on the CPU and the device."""

    def __init__(self, device: torch.device) -> None:
        self._host = HostRandom()
        # Asked without torch.cuda.get_rng_state, which finds out again which generator is meant.
        self._generator = _generator_of(device) if device.type == "cuda" else None
        self._card = self._generator.get_state() if self._generator is not None else None

    def restore(self) -> None:
        self._host.restore()
        if self._generator is not None and self._card is not None:
            self._generator.set_state(self._card)

    def is_now(self) -> bool:
        """Whether nothing has been drawn since."""
        if self._generator is not None and self._card is not None:
            return torch.equal(self._card, self._generator.get_state()) and self._host.is_now()
        return self._host.is_now()


@functools.cache
def _generator_of(device: torch.device) -> torch.Generator:
    """A card's own generator, which a process keeps for good."""
    torch.cuda.init()
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


class StepStart:
    """What a forward and a backward pass change, as it was before them; kept in place and used again every step."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._device = device
        self._slots = [(module, name) for module in model.modules() for name in module._buffers]
        self._buffers: list[Tensor | None] = []
        self._copies: list[Tensor] = []
        self._scale: list[Tensor] = []
        self._random: RandomState | None = None

    def forget(self) -> None:
        """A new step begins: there is nothing to come back to yet."""
        self._random = None

    def remember(self, scaler: torch.amp.GradScaler | None) -> None:
        """Takes the picture, once a step; nothing here waits for the device, and nothing of the model changes."""
        if self._random is not None:
            return
        if self._slots:
            self._remember_buffers()
        if scaler is not None:
            self._scale = [t.clone() for t in _scaler_tensors(scaler)]
        self._random = RandomState(self._device)

    def _remember_buffers(self) -> None:
        self._buffers = [module._buffers.get(name) for module, name in self._slots]
        present = self._present()
        if not _fit(self._copies, present):
            self._copies = [torch.empty_like(b) for b in present]
        copy_all(self._copies, present)

    def restore(self, scaler: torch.amp.GradScaler | None) -> None:
        """Puts everything back; a buffer that was replaced is the old one again. May be done twice."""
        if self._random is None:
            return
        for (module, name), buffer in zip(self._slots, self._buffers, strict=True):
            module._buffers[name] = buffer
        copy_all(self._present(), self._copies)
        if scaler is not None:
            copy_all(_scaler_tensors(scaler), self._scale)
            scaler._per_optimizer_states.clear()
        self._random.restore()

    def _present(self) -> list[Tensor]:
        return [buffer for buffer in self._buffers if buffer is not None]


def _scaler_tensors(scaler: torch.amp.GradScaler | None) -> list[Tensor]:
    """The scaler's state, without waiting for the device as its state_dict does."""
    state = [getattr(scaler, name, None) for name in ("_scale", "_growth_tracker")]
    return [t for t in state if isinstance(t, Tensor)]


class Undo:
    """A copy of everything an optimizer step writes, on the device while there is room, else in host memory."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, on_host: bool = False, room: Sequence[Tensor] = ()) -> None:
        """``room`` is the ``copies`` of an earlier one that is needed no more; they are written over if they fit."""
        self._optimizer = optimizer
        self._states = {owner: dict(state) for owner, state in optimizer.state.items()}
        self._groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        places = (*self._states.values(), *self._groups)
        held = [(place, name, value) for place in places for name, value in place.items()]
        self._values = [(place, name, _kept(value)) for place, name, value in held if not isinstance(value, Tensor)]
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        written = [*parameters, *(value for _, _, value in held if isinstance(value, Tensor))]
        self._targets = [local_part(tensor) for tensor in written]
        if not _fit(room, self._targets):
            room = _made(self._targets, on_host)
        self.copies: Sequence[Tensor] = room
        copy_all(room, self._targets)

    def back(self) -> None:
        """Puts everything back; state that the failed step created is forgotten. May be done twice."""
        copy_all(self._targets, self.copies)
        for place, name, value in self._values:
            place[name] = _kept(value)
        self._optimizer.state.clear()
        self._optimizer.state.update({owner: dict(state) for owner, state in self._states.items()})
        for group, saved in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(saved)


def _kept(value: Any) -> Any:
    """A setting or a count as it is now, whatever is done to it later."""
    return value if type(value) in _FIXED else copy.deepcopy(value)


_FIXED = (int, float, bool, str, type(None))


def _fit(copies: Sequence[Tensor], tensors: Sequence[Tensor]) -> bool:
    return len(copies) == len(tensors) and all(
        c.shape == t.shape and c.dtype == t.dtype and c.device == t.device for c, t in zip(copies, tensors, strict=True)
    )


def _made(tensors: Sequence[Tensor], on_host: bool) -> list[Tensor]:
    copies: list[Tensor] = []
    try:
        copies = [torch.empty_like(t, device="cpu" if on_host else None) for t in tensors]
    except Exception as error:
        if on_host or not is_out_of_memory(error):
            raise
    if len(copies) < len(tensors):
        torch.cuda.empty_cache()
        copies = [torch.empty_like(t, device="cpu") for t in tensors]
    return copies


@torch.no_grad()
def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copies in as few launches as there are kinds of tensors."""
    kinds: dict[tuple[Any, ...], tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
    for target, source in zip(targets, sources, strict=True):
        into, out = kinds[target.device, target.dtype, source.device]
        into.append(target)
        out.append(source)
    for into, out in kinds.values():
        torch._foreach_copy_(into, out)


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
