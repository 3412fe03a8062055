"""Dataclasses to JSON and back, driven by their types; numbers that are not finite become null."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def encode(value: Any) -> Any:
    """``value`` as plain JSON types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        # Raw samples, by the hundred thousand: a call for each takes ten times as long.
        if set(map(type, value)) == {float}:
            return [item if math.isfinite(item) else None for item in value]
        return [encode(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, (str, int, bool)):
        return value
    if hasattr(value, "item"):
        return encode(value.item())
    raise TypeError(f"{type(value).__name__} has no place in a record: {value!r}")


_one_line = json.JSONEncoder(allow_nan=False).encode


def to_json(value: Any, margin: str = "\n") -> str:
    """Plain JSON types as text, a line for each value, but one for all of a list of numbers: raw samples are many."""
    inner = margin + " "
    if isinstance(value, dict) and value:
        lines = [f"{inner}{_one_line(key)}: {to_json(item, inner)}" for key, item in value.items()]
        return "{" + ",".join(lines) + margin + "}"
    if isinstance(value, list) and not set(map(type, value)) <= {float, int, bool, type(None)}:
        return "[" + ",".join(inner + to_json(item, inner) for item in value) + margin + "]"
    return _one_line(value)


def decode(kind: Any, data: Any) -> Any:
    """JSON ``data`` as a value of type ``kind``; a missing or mistyped field raises ``ValueError`` naming it."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if data is None:
            return None
        return decode(next(a for a in args if a is not type(None)), data)
    if data is None and kind is float:
        return math.nan
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _decode_dataclass(kind, data)
    if origin in (list, tuple):
        if not isinstance(data, list):
            raise ValueError(f"a list was expected, got {type(data).__name__}")
        # Raw samples, as above.
        plain = args[0] is float and set(map(type, data)) == {float}
        items = list(data) if plain else [decode(args[0], item) for item in data]
        return tuple(items) if origin is tuple else items
    if origin is dict:
        if not isinstance(data, dict):
            raise ValueError(f"a mapping was expected, got {type(data).__name__}")
        return {key: decode(args[1], item) for key, item in data.items()}
    if kind is float and isinstance(data, int):
        return float(data)
    if kind in (str, int, float, bool) and not isinstance(data, kind):
        raise ValueError(f"{kind.__name__} was expected, got {data!r}")
    return data


def _decode_dataclass(kind: type[T], data: Any) -> T:
    if not isinstance(data, dict):
        raise ValueError(f"{kind.__name__} must be a mapping, got {type(data).__name__}")
    hints = typing.get_type_hints(kind)
    values = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name in data:
            try:
                values[field.name] = decode(hints[field.name], data[field.name])
            except ValueError as error:
                raise ValueError(f"{field.name}: {error}") from None
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{field.name} is missing")
    return kind(**values)
