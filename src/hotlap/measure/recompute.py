"""Activation checkpointing for any model: blocks forget their activations and compute them again for the backward pass.

The second computation is the first one over again and leaves no trace: it begins with the buffers of the first, those
that running statistics live in are not updated twice, and dropout loses the same units.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hotlap.measure.dropout import KeyedDropout


def find_blocks(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules worth recomputing: the outermost ones below the model that are called and made of several layers.

    Lists are looked into, and so is a module with more than half of all layers: recomputed as a whole it would need
    nearly all the memory at once.
    """
    found: dict[nn.Module, str] = {}
    num_layers = _num_layers(model)

    def walk(prefix: str, module: nn.Module) -> None:
        for name, child in module.named_children():
            path = f"{prefix}{name}"
            nested = any(_has_layers(inner) for inner in child.children())
            if isinstance(child, (nn.ModuleList, nn.ModuleDict)) or (
                nested and (isinstance(child, nn.Sequential) or 2 * _num_layers(child) > num_layers)
            ):
                walk(path + ".", child)
            elif _has_layers(child):
                found.setdefault(child, path)

    walk("", model)
    return [(path, module) for module, path in found.items()]


def _has_layers(module: nn.Module) -> bool:
    return any(True for _ in module.children())


def _num_layers(module: nn.Module) -> int:
    return sum(not _has_layers(inner) for inner in module.modules())


def recompute_blocks(model: nn.Module) -> Callable[[], None]:
    """Switches recomputation on for the blocks of ``model``; the function returned switches it off again.

    Parameters, names and the state dict stay as they are.
    """
    blocks = [module for _, module in find_blocks(model)]
    for block in blocks:
        block.forward = _Recomputed(block, block.__dict__.get("forward"))  # type: ignore[method-assign]

    def off() -> None:
        for block in blocks:
            ours = block.__dict__.pop("forward")  # the class's own forward shows again
            if ours.own is not None:
                block.forward = ours.own  # type: ignore[method-assign]

    return off


class _Recomputed:
    """A block's forward pass with recomputation; an object, so that a deep copy of a model uses its own weights."""

    def __init__(self, block: nn.Module, own: Callable[..., Any] | None) -> None:
        self.block, self.own = block, own

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        block = self.block
        forward = type(block).forward.__get__(block) if self.own is None else self.own
        if not block.training:
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, context_fn=lambda: _contexts(block), **kwargs)


def _contexts(
    block: nn.Module,
) -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
    """What surrounds the first computation, nothing, and the second: the state that the first began with."""
    dropouts = [m for m in block.modules() if isinstance(m, KeyedDropout)]
    calls = [layer.num_calls for layer in dropouts]
    buffers = [(m, name, b.clone()) for m in block.modules() for name, b in _lasting_buffers(m)]

    @contextlib.contextmanager
    def again() -> Iterator[None]:
        later_calls = [layer.num_calls for layer in dropouts]
        later = [module._buffers[name] for module, name, _ in buffers]
        try:
            for layer, before in zip(dropouts, calls, strict=True):
                layer.num_calls, layer.is_replayed = before, True
            for module, name, buffer in buffers:
                module._buffers[name] = buffer
            yield
        finally:
            for layer, num in zip(dropouts, later_calls, strict=True):
                layer.num_calls, layer.is_replayed = num, False
            for (module, name, _), now in zip(buffers, later, strict=True):
                module._buffers[name] = now

    return contextlib.nullcontext(), again()


def _lasting_buffers(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Buffers that a forward pass may change: running statistics are saved with the model, tables and masks seldom."""
    passing = module._non_persistent_buffers_set
    return [(name, b) for name, b in module._buffers.items() if b is not None and name not in passing]
