"""What is known of a form that was written and read back; imports no torch, so that tools can hold it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from hotlap.records.measurement import Gate

FILES = {
    "exported": "model.pt2",
    "aoti": "model.aoti.pt2",
    "onnx": "model.onnx",
    "torchscript": "model.torchscript.pt",
}
"""The file of each form; large ONNX models keep their weights in a second one beside it."""


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """One input or output of a form."""

    name: str
    dtype: str
    shape: list[int | None]
    """None where the size goes with the batch."""


@dataclass(frozen=True, kw_only=True)
class FileInfo:
    """One file, as it was written."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Made:
    """One form, written."""

    form: str
    arm: str
    seconds: float
    files: list[FileInfo]
    """The form's own file first."""
    inputs: list[TensorInfo] = field(default_factory=list)
    outputs: list[TensorInfo] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """Lines of code, as file:line, whose numbers a trace keeps as it found them in its tensors."""


@dataclass(frozen=True, kw_only=True)
class Reloaded:
    """One form, read back in a process that did not make it."""

    load_s: float
    gate: Gate


def file_info(path: Path) -> FileInfo:
    """Size and digest of a file."""
    with open(path, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return FileInfo(name=path.name, size_bytes=path.stat().st_size, sha256=digest)
