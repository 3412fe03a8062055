"""Where in a model memory ran out: the layer's name and the shape it was given."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

_ROOT = "the model itself"
_WATCHED = "_hotlap_watched"


@dataclass(frozen=True)
class Place:
    """One layer at work."""

    layer: str
    kind: str
    shape: tuple[int, ...] | None
    doing: Literal["forward", "backward"]

    def __str__(self) -> str:
        shape = f" on {list(self.shape)}" if self.shape is not None else ""
        who = self.layer if self.layer == _ROOT else f"layer {self.layer!r}"
        return f"the {self.doing} pass of {who} ({self.kind}){shape}"


@dataclass(frozen=True)
class Trouble:
    """Why an attempt failed, in words: holding on to the exception would hold on to its tensors."""

    what: str
    place: Place | None


class Tracer:
    """Remembers the last layer a backward pass came to; its finding rides on the exception that leaves the block.

    A forward pass needs none, as its layers are on the stack. Hooks cost time, so this is used only where an error is
    near. They hang on tensors: those of modules forbid what works in place, such as ``nn.ReLU(inplace=True)``.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._handles: list[RemovableHandle] = []
        self.last: Place | None = None

    def __enter__(self) -> Tracer:
        self._handles = [self._model.register_forward_pre_hook(self._begin)]
        for name, module in self._model.named_modules():
            self._handles.append(module.register_forward_hook(self._hook(name or _ROOT)))
        return self

    def _begin(self, *_: Any) -> None:
        self.last = None

    def _hook(self, name: str) -> Any:
        def watch(module: nn.Module, _: Any, out: Any) -> None:
            kind = type(module).__name__

            def remember(gradient: Tensor) -> None:
                self.last = Place(name, kind, tuple(gradient.shape), "backward")

            for tensor in tree_leaves(out):
                if not isinstance(tensor, Tensor) or tensor.grad_fn is None:
                    continue
                # The result of a layer is often that of the modules around it too; the innermost comes first.
                if getattr(tensor, _WATCHED, None) is not tensor.grad_fn:
                    tensor.register_hook(remember)
                    setattr(tensor, _WATCHED, tensor.grad_fn)

        return watch

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        if error is not None and self.last is not None:
            error.hotlap_place = self.last  # type: ignore[attr-defined]


def place_of(error: BaseException, model: nn.Module) -> Place | None:
    """The layer an exception comes from: the innermost module on its stack, else what a tracer saw."""
    names = {id(module): name or _ROOT for name, module in model.named_modules()}
    found: Place | None = None
    # Looking at the variables of a frame that still runs would leave it a copy of them, the exception among them, and
    # with it every tensor of the failed step. That frame, the one that caught the exception, comes first.
    trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
    while trace is not None:
        local = trace.tb_frame.f_locals
        owner = local.get("self")
        if isinstance(owner, nn.Module) and id(owner) in names:
            shape = next((tuple(v.shape) for k, v in local.items() if k != "self" and isinstance(v, Tensor)), None)
            found = Place(names[id(owner)], type(owner).__name__, shape, "forward")
        trace = trace.tb_next
    return found or getattr(error, "hotlap_place", None)
