"""Activation checkpointing for any model: blocks forget their activations and compute them again for the backward pass.

The second computation leaves no trace: running statistics are not updated twice, and dropout loses the same units.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from hotlap.measure.dropout import KeyedDropout

_LISTS = (nn.ModuleList, nn.ModuleDict)


def find_blocks(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules worth recomputing: the outermost ones below the model that are called and made of several layers."""
    found: list[tuple[str, nn.Module]] = []

    def walk(prefix: str, module: nn.Module) -> None:
        for name, child in module.named_children():
            path = f"{prefix}{name}"
            inner = list(child.children())
            if isinstance(child, _LISTS) or (
                isinstance(child, nn.Sequential) and any(list(c.children()) for c in inner)
            ):
                walk(path + ".", child)
            elif inner and not isinstance(child, nn.RNNBase):
                found.append((path, child))

    walk("", model)
    return found


def recompute_blocks(model: nn.Module) -> Callable[[], None]:
    """Switches recomputation on for the blocks of ``model``; the function returned switches it off again.

    Parameters, names and the state dict stay as they are.
    """
    blocks = [module for _, module in find_blocks(model)]
    for block in blocks:
        block.forward = _recomputed(block, block.forward)  # type: ignore[method-assign]

    def off() -> None:
        for block in blocks:
            del block.forward  # the class's own forward shows again

    return off


def _recomputed(block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not block.training:
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, context_fn=lambda: _contexts(block), **kwargs)

    return run


def _contexts(
    block: nn.Module,
) -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
    dropouts = [m for m in block.modules() if isinstance(m, KeyedDropout)]
    norms = [m for m in block.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    calls = [layer.num_calls for layer in dropouts]

    @contextlib.contextmanager
    def again() -> Iterator[None]:
        now = [layer.num_calls for layer in dropouts]
        try:
            for layer, before in zip(dropouts, calls, strict=True):
                layer.num_calls = before
            for norm in norms:
                norm.track_running_stats = False
            yield
        finally:
            for layer, later in zip(dropouts, now, strict=True):
                layer.num_calls = later
            for norm in norms:
                norm.track_running_stats = True

    return contextlib.nullcontext(), again()
