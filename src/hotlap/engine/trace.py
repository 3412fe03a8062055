"""Where in a model memory ran out: the layer's name and the shape it was given."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class Place:
    """One layer at work."""

    layer: str
    kind: str
    shape: tuple[int, ...] | None
    doing: str

    def __str__(self) -> str:
        shape = f" on {list(self.shape)}" if self.shape is not None else ""
        return f"the {self.doing} pass of layer {self.layer!r} ({self.kind}){shape}"


class Tracer:
    """Remembers the last layer entered, forward or backward; its findings ride on the exception that leaves the block.

    Hooks cost time, so it is used only where an error is near: on the smallest split after memory ran out.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.last: Place | None = None

    def __enter__(self) -> Tracer:
        self._handles = []
        for name, module in self._model.named_modules():
            if any(module.children()):
                continue
            enter = self._hook(name, module, "forward")
            self._handles.append(module.register_forward_pre_hook(enter))
            self._handles.append(module.register_full_backward_pre_hook(self._hook(name, module, "backward")))
        return self

    def _hook(self, name: str, module: nn.Module, doing: str) -> Any:
        def remember(_: nn.Module, tensors: Any) -> None:
            shape = next((tuple(t.shape) for t in tensors if isinstance(t, Tensor)), None)
            self.last = Place(name or "the model itself", type(module).__name__, shape, doing)

        return remember

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        if error is not None and self.last is not None:
            error.hotlap_place = self.last  # type: ignore[attr-defined]


def place_of(error: BaseException, model: nn.Module) -> Place | None:
    """The layer an exception comes from: as traced, else the innermost module on its stack."""
    traced: Place | None = getattr(error, "hotlap_place", None)
    if traced is not None:
        return traced
    names = {id(module): name or "the model itself" for name, module in model.named_modules()}
    found: Place | None = None
    trace = error.__traceback__
    while trace is not None:
        local = trace.tb_frame.f_locals
        owner = local.get("self")
        if id(owner) in names:
            shape = next((tuple(v.shape) for k, v in local.items() if k != "self" and isinstance(v, Tensor)), None)
            found = Place(names[id(owner)], type(owner).__name__, shape, "forward")
        trace = trace.tb_next
    return found
