"""What a checkpoint may hold: only what ``torch.load(weights_only=True)`` gives back."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

import torch

from hotlap.base.errors import UsageError

SCALARS = (type(None), bool, int, float, str, torch.dtype, torch.device, torch.Size)
MAPPINGS = (dict, OrderedDict, Counter)
SEQUENCES = (list, tuple)
TENSORS = (torch.Tensor, torch.nn.Parameter)

MAX_INT_BITS = 255 * 8 - 1
"""The restricted unpickler knows integers of up to 255 bytes, sign included."""

REMEDY = (
    "Store numbers, strings, lists, dicts and tensors; turn an array into a tensor and a numpy number into float or int"
)


class UnstorableState(UsageError):
    """A state holds something that could not be read back from a checkpoint."""


def check_plain(state: Mapping[str, Any]) -> None:
    """Refuses a state with anything that would not come back, naming where it is.

    Subclasses are refused too: a named tuple or a tensor subclass would need its class at load time. So are bytes:
    torch writes empty ones in a way that it then refuses to read.
    """
    _check(state, "state", ())


def _check(value: Any, where: str, inside: tuple[int, ...]) -> None:
    kind = type(value)
    if kind in SCALARS:
        if kind is int and value.bit_length() > MAX_INT_BITS:
            raise UnstorableState(f"{where} is an int of {value.bit_length()} bits", expected=f"at most {MAX_INT_BITS}")
        return
    if kind not in (*MAPPINGS, *SEQUENCES, *TENSORS):
        raise UnstorableState(f"{where} is a {_full_name(kind)}", expected="what torch loads with weights_only=True",
                              remedy=REMEDY)  # fmt: skip
    if id(value) in inside:
        raise UnstorableState(f"{where} contains itself", expected="a tree")
    inside = (*inside, id(value))
    if kind in TENSORS and value.is_meta:
        raise UnstorableState(f"{where} is a tensor on the meta device, which has no values", expected="real values")
    if kind in MAPPINGS:
        for key, item in value.items():
            _check(key, f"the key {key!r} of {where}", inside)
            _check(item, f"{where}[{key!r}]", inside)
    elif kind in SEQUENCES:
        for index, item in enumerate(value):
            _check(item, f"{where}[{index}]", inside)
    for name, item in getattr(value, "__dict__", {}).items():  # pickled too: attributes set on tensors, _metadata
        _check(item, f"{where}.{name}", inside)


def _full_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
