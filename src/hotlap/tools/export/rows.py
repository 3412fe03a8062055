"""One form of an export from the wish to the file: what became of it, and why."""

from __future__ import annotations

from dataclasses import dataclass, field

from hotlap.measure.deploy_files import FileInfo, TensorInfo


@dataclass(frozen=True, kw_only=True)
class FormRow:
    """A form, as far as it came."""

    form: str
    arm: str
    """How it runs here, as cpu:bf16+onnx."""
    status: str = "wanted"
    """right, wrong (the gate is red), failed, skipped (something is not installed), out of memory, or wanted still."""
    why: str = ""
    lost: list[str] = field(default_factory=list)
    """Options of the arm that this form cannot have."""
    files: list[FileInfo] = field(default_factory=list)
    inputs: list[TensorInfo] = field(default_factory=list)
    outputs: list[TensorInfo] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """Lines of the model's code whose decisions the form keeps as they were when it was made."""
    make_s: float | None = None
    load_s: float | None = None
    """Until it can be called, in a fresh process that has imported torch and nothing else for it."""
    error: float | None = None
    """The largest error of the numeric gate."""
    allowed: float | None = None
    """What was allowed for that check."""

    @property
    def warning(self) -> str:
        """What is not said by the gate, which has seen few inputs; nothing of most forms."""
        if not self.kept:
            return ""
        return (
            f"{self.form} always goes the way that its first inputs went at {', '.join(self.kept)}, where the model "
            "reads a number out of a tensor: inputs that decide otherwise there get a wrong answer."
        )

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)
