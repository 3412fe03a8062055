"""PNG pictures of 16 bits with several channels, which Pillow would cut down to 8 bits without a word."""

from __future__ import annotations

import struct
import zlib

import numpy as np

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">IIBBBBB")
_CHANNELS = {2: 3, 4: 2, 6: 4}


def needs_all_bits(content: bytes) -> bool:
    """Whether a file's header says PNG, 16 bits a sample and more than one channel."""
    return (
        content[:8] == SIGNATURE
        and content[12:16] == b"IHDR"
        and content[24:25] == b"\x10"
        and content[25] in _CHANNELS
    )


def read_png16(content: bytes) -> np.ndarray:  # [H, W, channels] uint16
    """The samples of such a file; damage is a ValueError."""
    width, height, _, colour, _, _, interlaced = _HEADER.unpack_from(content, 16)
    if interlaced:
        raise ValueError("interlaced PNG of 16 bits")
    channels = _CHANNELS[colour]
    row = width * channels * 2
    packed = b"".join(_data_chunks(content))
    raw = zlib.decompressobj().decompress(packed, height * (row + 1))
    if len(raw) < height * (row + 1):
        raise ValueError(f"image file is truncated: {len(raw)} of {height * (row + 1)} bytes")
    lines = np.frombuffer(raw, np.uint8).reshape(height, row + 1)
    made = np.zeros((height + 1, row), np.uint8)
    for n in range(height):
        made[n + 1] = _unfilter(int(lines[n, 0]), lines[n, 1:], made[n], channels * 2)
    return made[1:].view(">u2").reshape(height, width, channels).astype(np.uint16)


def _data_chunks(content: bytes) -> list[bytes]:
    found, at = [], 8
    while at + 12 <= len(content):
        (size,) = struct.unpack_from(">I", content, at)
        kind = content[at + 4 : at + 8]
        if kind == b"IDAT":
            found.append(content[at + 8 : at + 8 + size])
        if kind == b"IEND":
            break
        at += 12 + size
    return found


def _unfilter(kind: int, line: np.ndarray, above: np.ndarray, step: int) -> np.ndarray:
    """A row of bytes from what is stored of it, which is its difference from its neighbours."""
    if kind == 0:
        return line
    if kind == 2:
        return line + above
    if kind == 1:
        return np.cumsum(line.reshape(-1, step), axis=0, dtype=np.uint8).reshape(-1)
    if kind not in (3, 4):
        raise ValueError(f"a row has the filter {kind}")
    stored, up, out = line.tolist(), above.tolist(), [0] * len(line)
    for n, value in enumerate(stored):
        left = out[n - step] if n >= step else 0
        if kind == 3:
            guess = (left + up[n]) >> 1
        else:
            corner = up[n - step] if n >= step else 0
            to_left, to_up, to_corner = abs(up[n] - corner), abs(left - corner), abs(left + up[n] - 2 * corner)
            guess = left if to_left <= to_up and to_left <= to_corner else up[n] if to_up <= to_corner else corner
        out[n] = (value + guess) & 255
    return np.array(out, np.uint8)
