"""The way back to the start of a step: randomness, running statistics, loss scale, parameters, optimizer state."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hotlap.device.memory import is_out_of_memory
from hotlap.engine.sums import local_part


class StepStart:
    """What a forward and a backward pass change, as it was before them; kept in place and used again every step."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._device = device
        self._slots = [(m, name) for m in model.modules() for name, b in m._buffers.items() if b is not None]
        self._buffers: list[Tensor] = []
        self._copies: list[Tensor] = []

    def remember(self, scaler: torch.amp.GradScaler | None) -> None:
        """Takes the picture; nothing here waits for the device."""
        self._cpu_random = torch.get_rng_state()
        self._device_random = torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None
        self._buffers = [module._buffers[name] for module, name in self._slots]  # type: ignore[misc]
        fits = len(self._copies) == len(self._buffers) and all(
            c.shape == b.shape and c.dtype == b.dtype and c.device == b.device
            for c, b in zip(self._copies, self._buffers, strict=True)
        )
        if not fits:
            self._copies = [torch.empty_like(b) for b in self._buffers]
        copy_all(self._copies, self._buffers)
        self._scale = [t.clone() for t in _scaler_tensors(scaler)]

    def restore(self, scaler: torch.amp.GradScaler | None) -> None:
        """Puts everything back; a buffer that was replaced is the old one again."""
        torch.set_rng_state(self._cpu_random)
        if self._device_random is not None:
            torch.cuda.set_rng_state(self._device_random, self._device)
        for (module, name), buffer in zip(self._slots, self._buffers, strict=True):
            module._buffers[name] = buffer
        copy_all(self._buffers, self._copies)
        if scaler is not None:
            for now, before in zip(_scaler_tensors(scaler), self._scale, strict=False):
                now.copy_(before)
            scaler._per_optimizer_states.clear()


def _scaler_tensors(scaler: torch.amp.GradScaler | None) -> list[Tensor]:
    """The scaler's state, without waiting for the device as its state_dict does; empty before its first use."""
    state = [getattr(scaler, name, None) for name in ("_scale", "_growth_tracker")]
    return [t for t in state if isinstance(t, Tensor)]


class Undo:
    """A copy of everything an optimizer step writes, on the device while there is room, else in host memory."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        self._known = set(optimizer.state)
        self._targets: list[Tensor] = [local_part(p.data) for p in parameters]
        self._values: list[tuple[dict[str, Any], str, Any]] = []
        for state in optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, Tensor):
                    self._targets.append(local_part(value))
                else:
                    self._values.append((state, name, copy.deepcopy(value)))
        self._groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        self._copies = _copied(self._targets)

    def back(self) -> None:
        """Puts everything back; state that the failed step created is forgotten."""
        for parameter in [p for p in self._optimizer.state if p not in self._known]:
            del self._optimizer.state[parameter]
        copy_all(self._targets, self._copies)
        for state, name, value in self._values:
            state[name] = value
        for group, saved in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(saved)


def _copied(tensors: Sequence[Tensor]) -> list[Tensor]:
    copies: list[Tensor] = []
    try:
        copies = [torch.empty_like(t) for t in tensors]
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    if len(copies) < len(tensors):
        torch.cuda.empty_cache()
        copies = [torch.empty_like(t, device="cpu") for t in tensors]
    copy_all(copies, tensors)
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
