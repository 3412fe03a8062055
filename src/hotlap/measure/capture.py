"""A model as a function of tensors alone: what reaches its forward pass, taken apart and put together again.

Workloads call their models in their own ways, with keywords, nested inputs and plain numbers. A form of a model that
lives outside Python takes tensors in an order, so one call is watched and its pattern kept.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_flatten_with_path, tree_leaves, tree_unflatten

from hotlap.base.errors import TargetError
from hotlap.workload import Batch, Workload


@dataclass(frozen=True)
class Pattern:
    """A nest of tensors and constants: where the tensors stand in it, and everything else."""

    leaves: tuple[Any, ...]
    """None in the place of each tensor."""
    places: tuple[int, ...]
    spec: TreeSpec

    @classmethod
    def of(cls, nest: Any) -> tuple[Pattern, list[Tensor]]:
        """The pattern of a nest, and its tensors in order."""
        leaves, spec = tree_flatten(nest)
        places = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
        constants = tuple(None if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        return cls(constants, places, spec), [leaves[i] for i in places]

    def fill(self, tensors: Sequence[Tensor]) -> Any:
        """The nest with these tensors in it."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        return tree_unflatten(leaves, self.spec)


@dataclass(frozen=True)
class Call:
    """One call of a model: ``(args, kwargs)`` and what came back."""

    given: Pattern
    tensors: list[Tensor]
    names: list[str]
    """Of the tensors, after the parameters of the forward pass."""
    returned: Pattern
    outputs: list[Tensor]
    dynamic: tuple[tuple[int, ...], ...] = ()
    """The dimensions of each input that grow with the batch, where a second call has told."""
    is_plain: bool = False
    """Nothing but tensors by position and one tensor back, so that a call needs no taking apart."""
    predicted: int | None = None
    """Which of the outputs ``predict`` gave on as it was."""

    def output_names(self) -> list[str]:
        return ["output"] if len(self.outputs) == 1 else [f"output_{i}" for i in range(len(self.outputs))]


class FlatModel(nn.Module):
    """The model as ``forward(*tensors)`` that gives a tensor or a tuple of them, in its own precision."""

    def __init__(self, model: nn.Module, call: Call, precision: torch.dtype | None, *, widen: bool = False) -> None:
        """``widen`` gives bfloat16 results as float32, for readers without that type."""
        super().__init__()
        self.model, self._call, self._precision, self._widen = model, call, precision, widen
        self.train(model.training)

    def forward(self, *tensors: Tensor) -> Any:
        args, kwargs = self._call.given.fill(tensors)
        if self._precision is None:
            out = self.model(*args, **kwargs)
        else:
            # Weights cast once and kept would be constants of the trace, not the file's weights.
            with torch.autocast(tensors[0].device.type, dtype=self._precision, cache_enabled=False):
                out = self.model(*args, **kwargs)
        _, found = Pattern.of(out)
        if self._widen:
            found = [tensor.float() if tensor.dtype == torch.bfloat16 else tensor for tensor in found]
        return found[0] if len(found) == 1 else tuple(found)


def capture(workload: Workload, model: nn.Module, batch: Batch) -> Call:
    """What ``workload.predict`` hands to the model for ``batch``, and what the model gives back."""
    seen: list[tuple[Any, Any]] = []

    def watch(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        seen.append(((args, kwargs), out))

    hook = model.register_forward_hook(watch, with_kwargs=True)
    try:
        with torch.no_grad():
            answer = workload.predict(model, batch)
    finally:
        hook.remove()
    if not seen:
        raise TargetError(
            f"predict() of {workload.name!r} never calls {type(model).__name__} itself, only parts of it",
            remedy="Give the model a forward() that does what predict() does, and call that",
        )
    given, out = seen[0]
    _open_dataclasses((given, out))
    pattern, tensors = Pattern.of(given)
    returned, outputs = Pattern.of(out)
    _check_plain(pattern, tensors, f"predict() of {workload.name!r} calls its model with")
    _check_plain(returned, outputs, f"{type(model).__name__} returns")
    args, kwargs = given
    plain = isinstance(out, Tensor) and not kwargs and all(isinstance(arg, Tensor) for arg in args)
    predicted = next((place for place, tensor in enumerate(outputs) if tensor is answer), None)
    return Call(pattern, tensors, _names(model, given), returned, outputs, is_plain=plain, predicted=predicted)


def _open_dataclasses(nest: Any) -> None:
    """Makes tensors inside the user's dataclasses leaves of a nest, as those inside tuples and mappings are."""
    while closed := {type(leaf) for leaf in tree_leaves(nest) if _is_closed(leaf)}:
        for kind in closed:
            torch.export.register_dataclass(kind)


def _is_closed(leaf: Any) -> bool:
    return dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)


def _check_plain(pattern: Pattern, tensors: list[Tensor], what: str) -> None:
    known = (type(None), bool, int, float, str, torch.dtype, torch.device)
    strange = [leaf for leaf in pattern.leaves if not isinstance(leaf, known)]
    if strange or not tensors:
        found = f"a {type(strange[0]).__name__}" if strange else "no tensor"
        raise TargetError(
            f"{what} {found}, which no exported form can hold", expected="tensors, and numbers that never change"
        )


def _names(model: nn.Module, given: tuple[Any, Any]) -> list[str]:
    """A name for each tensor: its parameter, then its place inside it."""
    parameters = [
        p.name for p in inspect.signature(model.forward).parameters.values() if p.kind is not p.VAR_POSITIONAL
    ]
    names: list[str] = []
    for path, leaf in tree_flatten_with_path(given)[0]:
        if not isinstance(leaf, Tensor):
            continue
        side, first, *rest = [_key(part) for part in path]
        by_position = side == 0
        known = by_position and isinstance(first, int) and first < len(parameters)
        root = parameters[first] if known else f"input_{first}" if by_position else first
        name = re.sub(r"\W+", "_", "_".join(str(part) for part in (root, *rest)))
        names.append(name if name not in names else f"{name}_{len(names)}")
    return names


def _key(part: Any) -> Any:
    return next(getattr(part, name) for name in ("idx", "key", "name") if hasattr(part, name))


def with_dynamic_batch(call: Call, larger: Call) -> Call:
    """The call, knowing which dimensions grow with the batch: those in which a larger one differs."""
    if call.given.leaves != larger.given.leaves or len(call.tensors) != len(larger.tensors):
        raise TargetError(
            "the model is called with other constants, or another number of tensors, for another batch",
            remedy="Export one size of batch with --no-dynamic-batch",
        )
    grown = tuple(
        tuple(dim for dim, (a, b) in enumerate(zip(one.shape, two.shape, strict=True)) if a != b)
        for one, two in zip(call.tensors, larger.tensors, strict=True)
    )
    if not any(grown):
        raise TargetError(
            "no input of the model grows with the batch", remedy="Export one size of batch with --no-dynamic-batch"
        )
    return dataclasses.replace(call, dynamic=grown)
