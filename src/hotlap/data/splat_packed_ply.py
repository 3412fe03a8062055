"""Splats as SuperSplat's compressed PLY: 16 bytes each, relative to chunks of 256, and a byte for each coefficient."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hotlap.base.errors import DataError
from hotlap.data.file_bytes import write_whole
from hotlap.data.ply import Header, columns
from hotlap.data.splat_bytes import from_three, logit, morton_order, sigmoid, three_smallest, to_steps, unit
from hotlap.data.splat_ply import count_rest, rest_names
from hotlap.data.splats import SH_C0, Splats

CHUNK = 256
POSITION = ("min_x", "min_y", "min_z", "max_x", "max_y", "max_z")
SCALE = ("min_scale_x", "min_scale_y", "min_scale_z", "max_scale_x", "max_scale_y", "max_scale_z")
COLOR = ("min_r", "min_g", "min_b", "max_r", "max_g", "max_b")
PACKED = ("packed_position", "packed_rotation", "packed_scale", "packed_color")
_BITS_111011 = ((21, 11), (11, 10), (0, 11))
_BITS_8888 = ((24, 8), (16, 8), (8, 8), (0, 8))
_LOG_SCALE_LIMIT = 20.0
_SH_REACH = 8.0
"""Coefficients lie between -4 and 4."""


def is_packed(header: Header) -> bool:
    """Whether a PLY file is one of these."""
    return "packed_position" in header.names("vertex")


def splats_of_packed(header: Header, tables: dict[str, np.ndarray]) -> Splats:
    """The splats of a file's tables ``chunk``, ``vertex`` and, if it has coefficients, ``sh``."""
    path = str(header.path)
    chunk_names = header.names("chunk")
    missing = [name for name in (*POSITION, *SCALE) if name not in chunk_names]
    missing += [name for name in PACKED if name not in header.names("vertex")]
    if missing:
        raise DataError(f"file {path!r} is no compressed PLY: {missing[0]!r} is missing")
    chunk, vertex = tables["chunk"], tables["vertex"]
    num = len(vertex)
    if len(chunk) != -(-num // CHUNK):
        raise DataError(f"file {path!r} has {len(chunk)} chunks for {num} splats", expected=f"{-(-num // CHUNK)}")
    rows = np.arange(num) // CHUNK
    words = {name: vertex[name].astype(np.int64) & 0xFFFFFFFF for name in PACKED}
    color = _unpack(words["packed_color"], _BITS_8888)
    plain = color[:, :3]
    if set(COLOR) <= set(chunk_names):
        plain = _between(columns(chunk, COLOR)[rows], plain)
    turn = (np.stack([words["packed_rotation"] >> shift & 1023 for shift in (20, 10, 0)], 1) / 1023 - 0.5) * np.sqrt(2)
    return Splats(
        means=_between(columns(chunk, POSITION)[rows], _unpack(words["packed_position"], _BITS_111011)),
        log_scales=_between(columns(chunk, SCALE)[rows], _unpack(words["packed_scale"], _BITS_111011)),
        quats=from_three(words["packed_rotation"] >> 30, turn),
        logit_opacities=logit(color[:, 3]),
        sh0=((plain - 0.5) / SH_C0).astype(np.float32),
        shN=_read_rest(header, tables, num),
    )


def _read_rest(header: Header, tables: dict[str, np.ndarray], num: int) -> np.ndarray:  # [N, K, 3]
    if "sh" not in tables:
        return np.zeros((num, 0, 3), np.float32)
    coeffs = count_rest(header.names("sh"), header.path)
    if len(tables["sh"]) != num:
        raise DataError(f"file {str(header.path)!r} has {len(tables['sh'])} rows of sh for {num} splats")
    steps = columns(tables["sh"], rest_names(coeffs))
    middle = (steps + 0.5) / 256
    middle[steps == 0], middle[steps == 255] = 0.0, 1.0
    rest = ((middle - 0.5) * _SH_REACH).reshape(num, 3, coeffs)
    return np.ascontiguousarray(rest.transpose(0, 2, 1))


def _unpack(words: np.ndarray, bits: tuple[tuple[int, int], ...]) -> np.ndarray:  # [N] -> [N, len(bits)] in 0..1
    parts = [(words >> shift & ((1 << width) - 1)) / ((1 << width) - 1) for shift, width in bits]
    return np.stack(parts, 1)


def _pack(values: np.ndarray, bits: tuple[tuple[int, int], ...]) -> np.ndarray:  # [N, len(bits)] -> [N] uint32
    words = np.zeros(len(values), np.int64)
    for column, (shift, width) in enumerate(bits):
        words |= to_steps(values[:, column], (1 << width) - 1) << shift
    return words.astype(np.uint32)


def _between(limits: np.ndarray, share: np.ndarray) -> np.ndarray:  # [N, 6], [N, 3] -> [N, 3] float32
    with np.errstate(all="ignore"):  # limits that are not finite give numbers that are not
        return (limits[:, :3] * (1 - share) + limits[:, 3:] * share).astype(np.float32)


def write_packed(path: Path, splats: Splats) -> None:
    """The splats in a quarter of their size, neighbours in one chunk; degree 3 at most."""
    if splats.sh_degree > 3:
        raise DataError(f"compressed PLY has no room for degree {splats.sh_degree}", expected="at most 3")
    splats = splats.take(morton_order(splats.means))
    limits, shares = [], []
    scales = splats.log_scales.clip(-_LOG_SCALE_LIMIT, _LOG_SCALE_LIMIT)
    for values in (splats.means, scales, 0.5 + np.float32(SH_C0) * splats.sh0):
        low_high, share = _chunked(values)
        limits.append(low_high)
        shares.append(share)
    largest, others = three_smallest(unit(splats.quats))
    turn = to_steps(others * np.sqrt(0.5) + 0.5, 1023)
    words = np.empty((len(splats), 4), "<u4")
    words[:, 0] = _pack(shares[0], _BITS_111011)
    words[:, 1] = (largest << 30 | turn[:, 0] << 20 | turn[:, 1] << 10 | turn[:, 2]).astype(np.uint32)
    words[:, 2] = _pack(shares[1], _BITS_111011)
    words[:, 3] = _pack(np.concatenate([shares[2], sigmoid(splats.logit_opacities)[:, None]], 1), _BITS_8888)
    chunks = np.concatenate(limits, 1, dtype="<f4")
    rest = splats.shN.transpose(0, 2, 1).reshape(len(splats), 3 * splats.shN.shape[1])
    steps = ((rest / _SH_REACH + 0.5) * 256).clip(0, 255).astype(np.uint8)
    write_whole(
        path, _head(len(splats), len(chunks), rest.shape[1]) + chunks.tobytes() + words.tobytes() + steps.tobytes()
    )


def _chunked(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # [N, 3] -> [chunks, 6], [N, 3] in 0..1
    """The limits of each chunk, and where between them the values lie."""
    starts = np.arange(0, len(values), CHUNK)
    low = np.minimum.reduceat(values, starts) if len(values) else values
    high = np.maximum.reduceat(values, starts) if len(values) else values
    rows = np.arange(len(values)) // CHUNK
    size = (high.astype(np.float64) - low)[rows]
    share = np.divide(values - low[rows].astype(np.float64), size, out=np.zeros_like(size), where=size > 0)
    return np.concatenate([low, high], 1), share


def _head(num: int, num_chunks: int, num_rest: int) -> bytes:
    lines = ["ply", "format binary_little_endian 1.0", f"element chunk {num_chunks}"]
    lines += [f"property float {name}" for name in (*POSITION, *SCALE, *COLOR)]
    lines += [f"element vertex {num}", *(f"property uint {name}" for name in PACKED)]
    if num_rest:
        lines += [f"element sh {num}", *(f"property uchar f_rest_{position}" for position in range(num_rest))]
    return "\n".join([*lines, "end_header", ""]).encode("ascii")
