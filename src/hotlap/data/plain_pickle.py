"""Pickles that hold only data: numbers, texts, containers and NumPy arrays. Nothing in the file is ever executed.

A pickle is a program that may call any function it names. Here the few names that arrays need lead to functions of
our own, which build arrays from bytes; every other name is an error.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from hotlap.base.errors import DataError

PLAIN_KINDS = "biufc"
"""First letters of the dtypes that may be built; object arrays could hold anything."""


class NotPlain(DataError):
    """A pickle is damaged, or asks for something that is not data."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(
            f"pickle {where!r} was refused: {reason}",
            expected="numbers, texts, lists, dicts and NumPy arrays",
            remedy="Save the arrays as .npz where the file comes from",
        )


class _Array:
    """Stands for ``numpy.ndarray`` while it is being built; replaced by a real array at the end."""

    array: np.ndarray

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, raw = state
        self.array = _filled(raw, dtype, shape, "F" if is_fortran else "C")


class _Dtype:
    """Stands for ``numpy.dtype``."""

    def __init__(self, text: Any = "", *_: Any) -> None:
        name = text.decode("ascii") if isinstance(text, bytes) else str(text)
        if name[:1] not in PLAIN_KINDS or not name[1:].isdigit():
            raise pickle.UnpicklingError(f"dtype {name!r} is not of plain numbers")
        self.name, self.order = name, "<"

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else str(state[1])
        self.order = ">" if order == ">" else "<"

    def real(self) -> np.dtype:
        return np.dtype(self.order + self.name)


def _filled(raw: Any, dtype: Any, shape: Any, order: str) -> np.ndarray:
    """The array in some bytes; the sizes must agree, so that a short file cannot ask for much memory."""
    if not isinstance(dtype, _Dtype):
        raise pickle.UnpicklingError("an array has no dtype")
    content = raw.encode("latin-1") if isinstance(raw, str) else bytes(raw)
    sizes = tuple(int(size) for size in shape)
    if min(sizes, default=0) < 0 or math.prod(sizes) * dtype.real().itemsize != len(content):
        raise pickle.UnpicklingError(f"an array of shape {sizes} has {len(content)} bytes")
    flat = np.frombuffer(content, dtype.real())
    return flat.reshape(sizes, order=order).copy(order="C")  # type: ignore[call-overload]


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _from_buffer(raw: Any, dtype: Any, shape: Any, order: str) -> _Array:
    made = _Array()
    made.array = _filled(raw, dtype, shape, "F" if order == "F" else "C")
    return made


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding!r}")
    return text.encode("latin-1")


def _no_bytes() -> bytes:
    """What old protocols call for empty bytes."""
    return b""


ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
    **{(builtins, "bytes"): _no_bytes for builtins in ("__builtin__", "builtins")},
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _from_buffer for core in ("core", "_core")},
}


class _Reader(pickle._Unpickler):
    """The unpickler in Python: the one in C reserves memory for any length or place that a file names."""

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    read: Callable[[int], bytes]
    append: Callable[[Any], None]

    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError(f"it asks for the outside object {pid!r}")

    def load_bytearray8(self) -> None:
        """Reads the bytes before it reserves memory for them."""
        length = int.from_bytes(self.read(8), "little")
        content = self.read(length)
        if len(content) < length:
            raise pickle.UnpicklingError(f"{length} bytes are announced, {len(content)} are there")
        self.append(bytearray(content))

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8


def load_plain_pickle(content: bytes, where: str) -> Any:
    """What a pickle holds, of Python 2 or 3; ``where`` names it in errors."""
    try:
        held = _Reader(io.BytesIO(content), encoding="latin1").load()
        return _revealed(held, {})
    except (
        pickle.UnpicklingError,
        EOFError,
        struct.error,
        AttributeError,
        IndexError,
        KeyError,
        TypeError,
        ValueError,
        OverflowError,
        MemoryError,
        RecursionError,
    ) as error:
        raise NotPlain(where, str(error) or type(error).__name__) from error


def _revealed(thing: Any, done: dict[int, Any]) -> Any:
    """The same with real arrays in place of their stand-ins; what occurs often is made once."""
    if isinstance(thing, _Array):
        return thing.array
    if isinstance(thing, _Dtype) or callable(thing):
        raise pickle.UnpicklingError("it holds a type, not data")
    if not isinstance(thing, (dict, list, tuple)):
        return thing
    if id(thing) not in done:
        if isinstance(thing, dict):
            made: Any = {_revealed(key, done): _revealed(value, done) for key, value in thing.items()}
        else:
            made = type(thing)(_revealed(item, done) for item in thing)
        done[id(thing)] = made
    return done[id(thing)]
