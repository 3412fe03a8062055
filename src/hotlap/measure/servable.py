"""What a model must say to be served: bytes to rows, rows through the model, rows to an answer.

A servable lives twice. At the door it decodes and finishes, without weights. In the worker that owns a device it is
loaded, and runs whatever rows of one shape were put together. So it travels as a :class:`ModelSpec`, never as itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Which model, and how it is run; plain values that can be sent to another process."""

    name: str
    """What clients call it."""
    target: str
    options: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    """Of a plain module."""
    weights: str = ""
    """A file; '' serves fresh weights."""
    arm: str = ""
    """As ``bf16+channels_last``, without a device; '' is plain float32."""
    rows: int = 0
    """Rows in a full batch; 0 leaves it to the workload."""


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One input or output."""

    name: str
    dtype: str
    """As torch spells it, ``float32``."""
    shape: tuple[int, ...]
    """Without the rows; -1 where any size will do."""


@dataclass(frozen=True, kw_only=True)
class Signature:
    """What a loaded model takes and gives."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    rows: int
    """Rows in a full batch."""
    arm: str
    """How it is run, in full."""


@dataclass(frozen=True)
class Decoded:
    """A request as the model takes it."""

    rows: tuple[Tensor, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    """What finishing needs to know, such as the size of the picture."""


class Loaded(Protocol):
    """A model on its device."""

    signature: Signature

    def run(self, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The outputs of some rows, on the CPU, as many rows as went in."""
        ...


class Servable(Protocol):
    """A model that can be served."""

    def load(self, device: str) -> Loaded:
        """The model on ``device``, run once so that libraries and compilers have done their work."""
        ...

    def decode(self, body: bytes, options: Mapping[str, Any], signature: Signature) -> Decoded:
        """A client's bytes as rows; called in a thread beside the door, and raises DataError for a bad client."""
        ...

    def finish(self, out: tuple[Tensor, ...], facts: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """The answer, as JSON; called in a thread beside the door."""
        ...
