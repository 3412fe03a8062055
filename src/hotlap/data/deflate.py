"""Bytes packed by Deflate in zlib's wrapping, by the fastest library that is there: they understand each other.

``isal`` packs labels in a sixth of zlib's time, in which libdeflate takes as long as zlib. A picture's bytes libdeflate
(the package ``deflate``) unpacks in less than half of zlib's time, ``isal`` in little more than half.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from typing import Any


def deflate(content: bytes) -> bytes:
    """Packed quickly; which bytes that gives depends on the library, what they unpack to does not."""
    library, level = _library()
    packed: bytes = library.compress(content, level)
    return packed


def inflate(packed: bytes, most: int) -> bytes | bytearray:
    """What was packed, at most so many bytes, and fewer where it was cut short; ValueError where it is damaged."""
    unpack_whole = _whole_library()
    if unpack_whole is not None and (whole := unpack_whole(packed, most)) is not None:
        return whole
    library, _ = _library()
    try:
        made: bytes = library.decompressobj().decompress(packed, most)
    except (library.error, zlib.error) as error:
        raise ValueError(f"its compressed data are damaged: {error}") from error
    return made


@functools.cache
def _library() -> tuple[Any, int]:
    """The library, and the level at which it packs quickly and well."""
    try:
        from isal import isal_zlib
    except ImportError:  # it is of the extra `segment`, and there are machines that it has no package for
        return zlib, 3
    return isal_zlib, 1


@functools.cache
def _whole_library() -> Callable[[bytes, int], bytearray | None] | None:
    """What unpacks only what is whole and no more than is asked for; of anything else it gives nothing."""
    try:
        from deflate import DeflateError, zlib_decompress
    except ImportError:  # likewise
        return None

    def unpack(packed: bytes, most: int) -> bytearray | None:
        try:
            made: bytearray = zlib_decompress(packed, most)
        except DeflateError:
            return None
        return made

    return unpack
