"""Bytes packed by Deflate in zlib's wrapping, by the faster of two libraries that give the same.

``isal`` unpacks the bytes of a picture in half to three quarters of zlib's time, and packs labels in an eighth.
"""

from __future__ import annotations

import zlib
from typing import Any

try:
    from isal import isal_zlib as _fast
except ImportError:  # of the extra `segment`; there are machines that it has no package for
    _fast: Any = None  # type: ignore[no-redef]


def deflate(content: bytes) -> bytes:
    """Packed quickly; which bytes that gives depends on the library, what they unpack to does not."""
    return _fast.compress(content, 1) if _fast is not None else zlib.compress(content, 3)


def inflate(packed: bytes, most: int) -> bytes:
    """What was packed, at most so many bytes, and fewer where it was cut short; ValueError where it is damaged."""
    library: Any = _fast or zlib
    try:
        made: bytes = library.decompressobj().decompress(packed, most)
    except (library.error, zlib.error) as error:
        raise ValueError(f"its compressed data are damaged: {error}") from error
    return made
