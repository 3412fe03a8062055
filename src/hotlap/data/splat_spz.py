"""Splats as Niantic's ``.spz``: about a tenth of a PLY. Versions 1 to 4 are read; 3 is written, and 4 if asked for.

Version 3 is what viewers since 2025 read, those of version 4 among them, and it needs nothing but gzip. Version 4 packs
each attribute by itself with Zstandard (``pip install 'hotlap[splat]'``). Axes in the file are right, up, back.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from hotlap.base.errors import ConfigError, DataError, EnvironmentUnusable
from hotlap.data.file_bytes import read_whole, write_whole
from hotlap.data.splat_bytes import from_three, logit, sigmoid, three_smallest, to_steps, unit
from hotlap.data.splats import SH_COEFFS, Splats

MAGIC = b"NGSP"
VERSIONS = (1, 2, 3, 4)
DEFAULT_VERSION = 3
_HEAD = struct.Struct("<4sIIBBBB")
_HEAD_4 = struct.Struct("<4sIIBBBBI12x")
_ENTRY = struct.Struct("<QQ")
_MOST_RATIO = 1100
"""No gzip stream unpacks to more times its size; a Zstandard one that does holds no real splats."""
_COLOR_SCALE = 0.15
_FRACTION_BITS = 12
_MOST_FIXED = (1 << 23) - 1
REACH = _MOST_FIXED / (1 << _FRACTION_BITS)
"""The largest coordinate of a centre that is written."""
_ANTIALIASED, _HAS_EXTENSIONS = 1, 2
"""Flags of the header; with the second, records of other programs follow the splats, and are left alone."""
SH_BITS = (5, 4)
"""What is kept of coefficients of degree 1, and of higher ones, so that they pack well; as Niantic's program does."""
_GZIP_LEVEL, _ZSTD_LEVEL = 6, 12
_MOST_WINDOW = 1 << 27
"""The largest history that a stream may ask the reader to keep."""
FLIP_AXES = np.array([1, -1, -1], np.float32)
FLIP_QUAT = np.array([1, 1, -1, -1], np.float32)
FLIP_REST = np.array(
    [-1, -1, 1, -1, 1, 1, -1, 1, -1, 1, -1, -1, 1, -1, 1, -1, 1, -1, 1, 1, -1, 1, -1, 1], np.float32
)  # fmt: skip
"""The sign of each coefficient when y and z change theirs: that of its polynomial in x, y and z."""


def read_spz(path: Path) -> Splats:
    """The splats of a file of any version."""
    content = read_whole(path)
    if content.startswith(MAGIC):
        return _read_4(path, content)
    if content.startswith(b"\x1f\x8b"):
        return _read_gzip(path, content)
    raise DataError(f"file {str(path)!r} is no spz file: it begins with {content[:4]!r}", expected="gzip or NGSP")


def _read_gzip(path: Path, content: bytes) -> Splats:
    unpack = zlib.decompressobj(wbits=31)
    try:
        head = unpack.decompress(content, _HEAD.size)
        if len(head) < _HEAD.size:
            raise DataError(f"file {str(path)!r} is cut short: it unpacks to {len(head)} bytes")
        magic, version, num, degree, fraction, flags, _ = _HEAD.unpack(head)
        if magic != MAGIC or version not in VERSIONS[:3]:
            raise DataError(
                f"file {str(path)!r} is spz of version {version} in gzip, marked {magic!r}", expected="1 to 3"
            )
        sizes = _sizes(path, version, num, degree, len(content))
        body = unpack.decompress(unpack.unconsumed_tail, sum(sizes) + 1)
    except zlib.error as error:
        raise DataError(f"file {str(path)!r} is damaged: {error}", remedy="Copy or export the file again") from error
    if len(body) < sum(sizes):
        raise DataError(f"file {str(path)!r} is cut short: {num} splats need {sum(sizes)} bytes, {len(body)} are there")
    if not unpack.eof and len(body) == sum(sizes):
        raise DataError(f"file {str(path)!r} is cut short: its end is missing", remedy="Copy or export the file again")
    if unpack.unused_data or (len(body) > sum(sizes) and not flags & _HAS_EXTENSIONS):
        raise _goes_on(path, num)
    ends = np.cumsum([0, *sizes])
    streams = [body[start:end] for start, end in pairwise(ends)]
    return _decode(version, num, degree, fraction, flags, streams)


def _read_4(path: Path, content: bytes) -> Splats:
    if len(content) < _HEAD_4.size:
        raise DataError(f"file {str(path)!r} is cut short: {len(content)} bytes")
    _, version, num, degree, fraction, flags, num_streams, toc = _HEAD_4.unpack_from(content)
    if version != 4:
        raise DataError(f"file {str(path)!r} is spz of version {version} without gzip", expected="4")
    sizes = _sizes(path, version, num, degree, len(content))
    wanted = [size for size in sizes if size]
    at = toc + num_streams * _ENTRY.size
    if num_streams != len(wanted) or toc < _HEAD_4.size or at > len(content):
        raise DataError(
            f"file {str(path)!r} has {num_streams} streams and its table at byte {toc}",
            expected=f"{len(wanted)} streams",
        )
    streams = []
    for number, size in enumerate(wanted):
        packed, unpacked = _ENTRY.unpack_from(content, toc + number * _ENTRY.size)
        if unpacked != size or packed > len(content) - at:
            raise DataError(f"file {str(path)!r}: stream {number} is {packed} bytes for {unpacked}, not for {size}")
        streams.append(_unpack_zstd(path, content[at : at + packed], size))
        at += packed
    if at < len(content) and not flags & _HAS_EXTENSIONS:
        raise _goes_on(path, num)
    full = iter(streams)
    return _decode(version, num, degree, fraction, flags, [next(full) if size else b"" for size in sizes])


def _goes_on(path: Path, num: int) -> DataError:
    return DataError(
        f"file {str(path)!r} goes on after its {num} splats, or its header is wrong",
        remedy="Copy or export the file again",
    )


def _unpack_zstd(path: Path, packed: bytes, size: int) -> bytes:
    library = _zstandard()
    try:
        made = library.ZstdDecompressor(max_window_size=_MOST_WINDOW).stream_reader(packed).read(size + 1)
    except library.ZstdError as error:
        raise DataError(f"file {str(path)!r} is damaged: {error}", remedy="Copy or export the file again") from error
    if len(made) != size:
        raise DataError(f"file {str(path)!r} is damaged: a stream unpacks to {len(made)} bytes, not {size}")
    return made


def _zstandard() -> Any:
    try:
        import zstandard
    except ModuleNotFoundError as error:
        raise EnvironmentUnusable(
            "spz of version 4 needs the package zstandard, which is not installed", remedy="pip install 'hotlap[splat]'"
        ) from error
    return zstandard


def _sizes(path: Path, version: int, num: int, degree: int, have: int) -> list[int]:
    """Bytes of the six attributes; refused if no packing could have made them so small."""
    if degree >= len(SH_COEFFS):
        raise DataError(f"file {str(path)!r} has spherical harmonics of degree {degree}", expected="0 to 4")
    each = (6 if version == 1 else 9, 1, 3, 3, 3 if version < 3 else 4, 3 * SH_COEFFS[degree])
    if num * sum(each) > _MOST_RATIO * have:
        raise DataError(
            f"file {str(path)!r} claims {num} splats in {have} bytes", remedy="Copy or export the file again"
        )
    return [num * size for size in each]


def _decode(version: int, num: int, degree: int, fraction: int, flags: int, streams: list[bytes]) -> Splats:
    places, alphas, colors, scales, turns, rest = (np.frombuffer(stream, np.uint8) for stream in streams)
    if version == 1:
        means = places.view("<f2").astype(np.float32).reshape(num, 3)
    else:
        parts = places.reshape(num, 3, 3).astype(np.int32)
        fixed = parts[..., 0] | parts[..., 1] << 8 | parts[..., 2] << 16
        means = np.ldexp((fixed - ((fixed & 0x800000) << 1)).astype(np.float32), -fraction)
    coeffs = SH_COEFFS[degree]
    steps = rest.reshape(num, coeffs, 3).astype(np.float32)
    return Splats(
        means=means * FLIP_AXES,
        log_scales=scales.reshape(num, 3).astype(np.float32) / 16 - 10,
        quats=_decode_turns(version, turns.reshape(num, 3 if version < 3 else 4)) * FLIP_QUAT,
        logit_opacities=logit(alphas / np.float32(255)),
        sh0=((colors.reshape(num, 3) / np.float32(255) - 0.5) / _COLOR_SCALE).astype(np.float32),
        shN=(steps - 128) / 128 * FLIP_REST[:coeffs, None],
        antialiased=bool(flags & _ANTIALIASED),
    )


def _decode_turns(version: int, turns: np.ndarray) -> np.ndarray:  # [N, 3 or 4] -> [N, 4] w, x, y, z
    if version < 3:
        xyz = turns.astype(np.float32) / 127.5 - 1
        w = np.sqrt((1 - (xyz**2).sum(1, keepdims=True)).clip(0))
        return np.concatenate([w, xyz], 1)
    words = np.ascontiguousarray(turns).view("<u4")[:, 0].astype(np.int64)
    fields = np.stack([words >> shift & 1023 for shift in (20, 10, 0)], 1)
    sizes = (fields & 511) / 511 * np.sqrt(0.5)
    return from_three(words >> 30, np.where(fields & 512, -sizes, sizes))[:, [3, 0, 1, 2]]


def write_spz(
    path: Path | str, splats: Splats, version: int = DEFAULT_VERSION, sh_bits: tuple[int, int] = SH_BITS
) -> None:
    """The splats in about a tenth of their size; centres must lie within 2,048 of the origin, degree 3 at most.

    ``sh_bits`` are what is kept of coefficients of degree 1, and of higher ones: with 8 and 8, all but 1/256.
    """
    if not all(1 <= bits <= 8 for bits in sh_bits):
        raise ConfigError(f"sh_bits = {sh_bits} cannot be kept of a byte", expected="two numbers from 1 to 8")
    if version not in (3, 4):
        raise ConfigError(f"version = {version} of spz is not written", expected="3 or 4")
    if splats.sh_degree > 3:
        raise DataError(f"spz is written for degrees up to 3, not {splats.sh_degree}", remedy="Use with_degree(3)")
    streams = _encode(splats, sh_bits)
    head = (MAGIC, version, len(splats), splats.sh_degree, _FRACTION_BITS, _ANTIALIASED * splats.antialiased)
    if version == 3:
        write_whole(Path(path), gzip.compress(_HEAD.pack(*head, 0) + b"".join(streams), _GZIP_LEVEL, mtime=0))
        return
    compressor = _zstandard().ZstdCompressor(level=_ZSTD_LEVEL)
    packed = [(compressor.compress(stream), len(stream)) for stream in streams if stream]
    table = b"".join(_ENTRY.pack(len(stream), size) for stream, size in packed)
    body = b"".join(stream for stream, _ in packed)
    write_whole(Path(path), _HEAD_4.pack(*head, len(packed), _HEAD_4.size) + table + body)


def _encode(splats: Splats, sh_bits: tuple[int, int]) -> list[bytes]:
    num = len(splats)
    away = np.abs(splats.means).max(1, initial=0.0)
    far = int((away > REACH).sum())
    if far:
        raise DataError(
            f"{far} of {num} splats lie too far out, one at {away.max():.6g} from the origin along an axis",
            expected=f"at most {REACH:.6g}, which is as far as spz reaches",
            remedy="Leave them out (--drop-bad of an export), or write PLY",
        )
    fixed = np.round(np.ldexp((splats.means * FLIP_AXES).astype(np.float64), _FRACTION_BITS))
    whole = fixed.astype(np.int64)
    places = np.stack([whole >> shift & 255 for shift in (0, 8, 16)], -1).astype(np.uint8)
    colors = to_steps(splats.sh0.astype(np.float64) * _COLOR_SCALE + 0.5, 255).astype(np.uint8)
    scales = np.round((splats.log_scales.astype(np.float64) + 10) * 16).clip(0, 255).astype(np.uint8)
    largest, others = three_smallest((unit(splats.quats) * FLIP_QUAT)[:, [1, 2, 3, 0]])
    sizes = to_steps(np.abs(others) / np.sqrt(0.5), 511)
    fields = sizes | np.where(others < 0, 512, 0)
    words = (largest << 30 | fields[:, 0] << 20 | fields[:, 1] << 10 | fields[:, 2]).astype("<u4")
    rest = np.round(splats.shN * FLIP_REST[: splats.shN.shape[1], None] * 128).astype(np.int64) + 128
    bucket = np.where(np.arange(rest.shape[1]) < 3, *(1 << 8 - bits for bits in sh_bits))[:, None]
    steps = ((rest + bucket // 2) // bucket * bucket).clip(0, 255).astype(np.uint8)
    alphas = to_steps(sigmoid(splats.logit_opacities), 255).astype(np.uint8)
    arrays = (places, alphas, colors, scales, words, steps)
    return [array.tobytes() for array in arrays]
