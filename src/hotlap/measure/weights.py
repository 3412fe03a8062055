"""Trained weights from a file, in the place of the fresh ones that a workload's model is built with."""

from __future__ import annotations

import copy
import errno
import hashlib
import pickle
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotlap.base.errors import EnvironmentUnusable, RecordError, UsageError
from hotlap.base.raised import few_words, misfit
from hotlap.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor, nn

CHECKPOINT = re.compile(r"step-\d{8,}-(?P<digest>[0-9a-f]{16})\.pt")
"""A training's checkpoint, whose name ends with the digest of its bytes."""
AVERAGED = "module."
"""Before the names of averaged weights."""
UNREADABLE = (
    pickle.UnpicklingError,
    RuntimeError,
    EOFError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    OSError,
    struct.error,
)
"""What torch raises on files that are no archive: it takes their bytes for a pickle's commands."""


def with_weights(workload: Workload, file: Path) -> Workload:
    """The same workload, whose models come with the weights of ``file``."""
    weights = read_weights(file)
    trained = copy.copy(workload)

    def build_model() -> nn.Module:
        model = workload.build_model()
        load_weights(model, weights, file)
        return model

    trained.build_model = build_model  # type: ignore[method-assign]
    return trained


def read_weights(file: Path) -> dict[str, Tensor]:
    """The state dict in a file: safetensors, torch.save's, or a checkpoint of 'hotlap train'.

    A checkpoint with averaged weights gives those: they are what its training evaluated.
    """
    import torch

    if not file.is_file():
        inside = min((*file.glob("*.pt"), *file.glob("*.safetensors")), default=None)
        raise UsageError(
            f"weights = {str(file)!r} {'is no file' if file.exists() else 'does not exist'}",
            expected="a .safetensors file or a checkpoint",
            remedy=f"Give a file of the folder, such as {str(inside)!r}" if inside else "",
        )
    if file.suffix == ".safetensors":
        return _read_safetensors(file)
    named = CHECKPOINT.fullmatch(file.name)
    if named:
        with open(file, "rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()[:16]
        if digest != named["digest"]:
            raise RecordError(f"weights = {str(file)!r} has the digest {digest}, not that of its name")
    try:
        data = torch.load(file, map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        raise _unreadable(file, error, "a state dict, without Python objects") from error
    return _state_dict(data, file)


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ModuleNotFoundError as error:
        raise EnvironmentUnusable(
            f"weights = {str(file)!r} needs safetensors, which is not installed", remedy="pip install safetensors"
        ) from error
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise _unreadable(file, error, "a whole .safetensors file") from error


def _unreadable(file: Path, error: Exception, expected: str) -> RecordError:
    said = "it is damaged, or of another kind"
    if isinstance(error, pickle.UnpicklingError):  # whose words advise to execute what is in the file
        named = re.search(r"(?:GLOBAL|type) ([\w.]+)", str(error))
        said = f"it asks for {named[1]}" if named else said
    elif _lacks_its_end(error):
        said = "it is damaged or cut short"
    elif isinstance(error, (RuntimeError, OSError)) or file.suffix == ".safetensors":
        said = (str(error).strip().splitlines() or [said])[0]
    return RecordError(
        f"weights = {str(file)!r} cannot be read: {few_words(said)}",
        expected=expected,
        remedy="Copy or save it again",
    )


def _lacks_its_end(error: Exception) -> bool:
    """Whether torch has missed what an archive ends with; of some sizes, it looks for that before the beginning."""
    if isinstance(error, OSError):
        return error.errno == errno.EINVAL
    return "failed finding central directory" in str(error)


def _state_dict(data: Any, file: Path) -> dict[str, Tensor]:
    from torch import Tensor

    if isinstance(data, Mapping) and isinstance(data.get("model"), Mapping):
        averaged = {k.removeprefix(AVERAGED): v for k, v in (data.get("ema") or {}).items() if k.startswith(AVERAGED)}
        data = averaged or data["model"]
    if not isinstance(data, Mapping) or not data or not all(isinstance(value, Tensor) for value in data.values()):
        raise RecordError(
            f"weights = {str(file)!r} holds no state dict",
            expected="names and tensors, or a checkpoint of 'hotlap train'",
        )
    return dict(data)


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], file: Path) -> None:
    """Puts the weights in; names or shapes that do not fit are an error, not left out."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise UsageError(
            f"weights = {str(file)!r} do not fit the model: {misfit(error)}",
            remedy="Give the options that it was trained with, as --set workload.NAME=VALUE",
        ) from error
