"""What a model must say to be served: bytes to rows, rows through the model, rows to an answer.

A servable lives twice. At the door it decodes and finishes, without weights. In the worker that owns a device it is
loaded, and runs whatever rows of one shape were put together. So it travels as a :class:`ModelSpec`, never as itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    Rows = tuple[Tensor, ...]
    """Each input, or each output, of some rows."""
else:
    Rows = tuple

OBJECTS, CLASSES, MESH, PICTURE, TENSORS = "objects", "classes", "mesh", "picture", "tensors"
"""What a model may answer with."""


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
    planes: tuple[str, ...] = ()
    """What the first dimension holds, where that has names."""


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

    rows: Rows
    facts: dict[str, Any] = field(default_factory=dict)
    """What finishing needs to know, such as the size of the picture."""


@dataclass(frozen=True, kw_only=True)
class FileAnswer:
    """An answer that is a file, such as a picture or a mesh."""

    name: str
    content: bytes
    media_type: str


class Loaded(Protocol):
    """A model on its device."""

    signature: Signature

    def begin(self, parts: Sequence[Rows]) -> Callable[[], Rows]:
        """Starts on the rows of several requests; the call that waits for their outputs, on the CPU, row by row."""
        ...


class Servable(Protocol):
    """A model that can be served."""

    threshold: float
    """What is used where a client names none."""
    is_heavy: bool
    """Whether decoding and finishing take so long that they are worth processes of their own."""

    def answers(self, signature: Signature) -> str:
        """What it answers with: objects, classes, mesh, picture or tensors."""
        ...

    def warm_up(self) -> None:
        """Lets decoding and finishing compile what they need, before the first client waits for it."""
        ...

    def load(self, device: str) -> Loaded:
        """The model on ``device``, run once so that libraries and compilers have done their work."""
        ...

    def decode(self, body: bytes, options: Mapping[str, Any], signature: Signature) -> Decoded:
        """A client's bytes as rows; called in a thread beside the door, and raises DataError for a bad client."""
        ...

    def finish(self, out: Rows, facts: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any] | FileAnswer:
        """The answer: ``model``, ``file`` and what was found, or a file; called in a thread beside the door."""
        ...


def answer_head(model: str, facts: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """What every answer about a picture begins with."""
    return {
        "model": model,
        "file": str(options.get("filename") or "upload"),
        "width": facts["width"],
        "height": facts["height"],
        "threshold": float(options.get("threshold", 0.5)),
        "um_per_px": options.get("um_per_px"),
    }
