"""Tensors of the Open Inference Protocol v2: as JSON, or as bytes after a JSON header."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotlap.base.errors import DataError, ShapeError, UnknownName, did_you_mean
from hotlap.measure.servable import Signature

DATATYPES = {
    "BOOL": "bool", "UINT8": "uint8", "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64",
    "FP16": "float16", "FP32": "float32", "FP64": "float64", "BF16": "bfloat16",
}  # fmt: skip
"""The protocol's names for torch's types."""
NAMES = {torch_name: name for name, torch_name in DATATYPES.items()}
MAX_DIMS = 8


@dataclass(frozen=True)
class InferRequest:
    """One request, in the order of the model's inputs."""

    rows: tuple[Any, ...]
    id: str = ""
    deadline_s: float | None = None
    binary: frozenset[str] = field(default_factory=frozenset)
    """Outputs wanted as bytes."""
    outputs: frozenset[str] | None = None
    """Outputs wanted at all; None for every one."""


def parse_infer(body: bytes, header_length: str | None, signature: Signature) -> InferRequest:
    """The request in a body; ``header_length`` is the length of its JSON where bytes follow."""
    head, tail = body, b""
    if header_length is not None:
        # Python reads no number of thousands of digits, and says so by an exception of its own.
        if not header_length.isdecimal() or len(header_length) > 20 or int(header_length) > len(body):
            raise DataError(
                f"Inference-Header-Content-Length = {_short(header_length)}", expected=f"a number up to {len(body)}"
            )
        head, tail = body[: int(header_length)], body[int(header_length) :]
    try:
        data = json.loads(head)
    except (ValueError, RecursionError) as error:
        raise DataError(f"the body is not JSON: {error}") from error
    if not isinstance(data, Mapping):
        raise DataError(f"the body is a {type(data).__name__}", expected="an object with 'inputs'")
    given = _by_name(data.get("inputs"), "inputs")
    known = [spec.name for spec in signature.inputs]
    for name in given:
        if name not in known:
            raise UnknownName(f"unknown input {name!r}", remedy=did_you_mean(name, known))
    missing = [name for name in known if name not in given]
    if missing:
        raise DataError(f"input {missing[0]!r} is missing", expected=f"inputs {', '.join(known)}")
    offset, tensors = 0, {}
    for name, entry in given.items():  # bytes lie in the order of the request, not of the model
        tensors[name], offset = _tensor(name, entry, tail, offset)
    if offset != len(tail):
        raise DataError(f"{len(tail)} bytes follow the header, and the inputs take {offset}", expected="the same")
    parameters = _mapping(data.get("parameters"), "parameters")
    wanted, binary = _outputs(data, parameters, signature)
    said = data.get("id")
    return InferRequest(
        tuple(tensors[name] for name in known),
        "" if said is None else str(said),
        _deadline(parameters.get("deadline_s")),
        binary,
        wanted,
    )


def _by_name(entries: Any, what: str) -> dict[str, Mapping[str, Any]]:
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise DataError(f"{what} = {_short(entries)}", expected="a list of objects")
    found: dict[str, Mapping[str, Any]] = {}
    for entry in entries:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            raise DataError(f"{what} holds {_short(entry)}", expected="objects with a name")
        if entry["name"] in found:
            raise DataError(f"{what} names {entry['name']!r} twice", expected="once")
        found[entry["name"]] = entry
    return found


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise DataError(f"{what} = {_short(value)}", expected="an object")
    return value or {}


def _deadline(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise DataError(f"deadline_s = {_short(value)}", expected="a number of seconds")
    return float(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _tensor(name: str, entry: Mapping[str, Any], tail: bytes, offset: int) -> tuple[Any, int]:
    """The tensor of one input, and where the bytes of the next begin."""
    import torch

    datatype, shape = entry.get("datatype"), entry.get("shape")
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise DataError(f"datatype = {_short(datatype)} of input {name!r}", expected=f"one of {', '.join(DATATYPES)}")
    dtype = getattr(torch, DATATYPES[datatype])
    sizes_ok = isinstance(shape, list) and 1 <= len(shape) <= MAX_DIMS
    if not sizes_ok or not all(type(size) is int and 0 <= size < 2**31 for size in shape):  # type: ignore[union-attr]
        raise ShapeError(f"shape = {_short(shape)} of input {name!r}", expected="a list of sizes, the rows first")
    assert isinstance(shape, list)
    parameters = _mapping(entry.get("parameters"), f"parameters of input {name!r}")
    size = parameters.get("binary_data_size")
    if size is None:
        return _from_json(name, entry.get("data"), shape, dtype), offset
    want = math.prod(shape) * dtype.itemsize
    if type(size) is not int or size != want or offset + size > len(tail):
        raise ShapeError(
            f"binary_data_size = {_short(size)} of input {name!r}",
            expected=f"{want} for shape {shape}, with {len(tail) - offset} bytes left",
        )
    if not size:
        return torch.zeros(shape, dtype=dtype), offset
    return torch.frombuffer(bytearray(tail[offset : offset + size]), dtype=dtype).reshape(shape), offset + size


def _from_json(name: str, data: Any, shape: list[int], dtype: Any) -> Any:
    import torch

    if not isinstance(data, list):
        raise DataError(f"data = {_short(data)} of input {name!r}", expected="a list of numbers")
    try:
        tensor = torch.tensor(data, dtype=dtype)
        exact = torch.tensor(data) if _is_whole(dtype) else None
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise DataError(f"data of input {name!r} is not a tensor: {error}") from error
    # torch cuts 1.5 to 1 and turns -1 into 255.
    if exact is not None and not torch.equal(tensor.to(exact.dtype), exact):
        raise DataError(f"data of input {name!r} holds numbers that are no {_dtype(tensor)}")
    if tensor.numel() != math.prod(shape):
        raise ShapeError(f"data of input {name!r} holds {tensor.numel()} values", expected=f"shape {shape}")
    return tensor.reshape(shape)


def _is_whole(dtype: Any) -> bool:
    return not dtype.is_floating_point and str(dtype) != "torch.bool"


def _outputs(
    data: Mapping[str, Any], parameters: Mapping[str, Any], signature: Signature
) -> tuple[frozenset[str] | None, frozenset[str]]:
    """The outputs that are wanted, None for all, and those of them to send as bytes."""
    known = [spec.name for spec in signature.outputs]
    as_bytes = parameters.get("binary_data_output") is True
    if data.get("outputs") in (None, []):
        return None, frozenset(known if as_bytes else ())
    wanted = _by_name(data["outputs"], "outputs")
    for name in wanted:
        if name not in known:
            raise UnknownName(f"unknown output {name!r}", remedy=did_you_mean(name, known))
    chosen = {n: _mapping(entry.get("parameters"), f"parameters of output {n!r}") for n, entry in wanted.items()}
    binary = frozenset(name for name, said in chosen.items() if said.get("binary_data", as_bytes) is True)
    return frozenset(wanted), binary


def encode_infer(
    model: str, request: InferRequest, outputs: tuple[Any, ...], signature: Signature
) -> tuple[bytes, int | None]:
    """The body of an answer, and the length of its JSON where bytes follow."""
    entries, blobs = [], []
    for spec, out in zip(signature.outputs, outputs, strict=True):
        if request.outputs is not None and spec.name not in request.outputs:
            continue
        entry: dict[str, Any] = {"name": spec.name, "shape": list(out.shape), "datatype": NAMES[_dtype(out)]}
        if spec.name in request.binary:
            blobs.append(out.contiguous().numpy().tobytes())
            entry["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            entry["data"] = [_json_number(value) for value in out.flatten().tolist()]
        entries.append(entry)
    said = {"model_name": model, "model_version": "1", **({"id": request.id} if request.id else {}), "outputs": entries}
    head = json.dumps(said, allow_nan=False, separators=(",", ":")).encode()
    return (head + b"".join(blobs), len(head)) if blobs else (head, None)


def _json_number(value: Any) -> Any:
    """JSON has no NaN; null stands for what is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")
