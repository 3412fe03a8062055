"""TIFF pictures page by page with all of their bits, and label pictures written.

Pillow reads TIFF too, but cuts colour of 16 bits down to 8 without a word. Read here: classic and BigTIFF, strips and
tiles, interleaved or planar, whole numbers of 8 to 64 bits and floats, uncompressed, Deflate, LZW and PackBits, with
predictors. Other compressions, such as JPEG, are ``None`` here and left to Pillow.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hotlap.base.errors import DataError
from hotlap.data.deflate import deflate, inflate
from hotlap.data.file_bytes import read_whole
from hotlap.data.picture_file import require_pillow

_SIZES = {
    1: "B", 2: "c", 3: "H", 4: "I", 5: "2I", 6: "b", 8: "h", 9: "i", 11: "f", 12: "d", 13: "I", 16: "Q",
    17: "q", 18: "Q",
}  # fmt: skip
_MOST_PAGES = 100_000
_MOST_VALUES = 1 << 24
SUBFILE, WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC = 254, 256, 257, 258, 259, 262
DESCRIPTION, STRIP_OFFSETS, ORIENTATION, SAMPLES, ROWS_PER_STRIP, STRIP_COUNTS = 270, 273, 274, 277, 278, 279
PLANAR, PREDICTOR, COLORMAP, TILE_WIDTH, TILE_HEIGHT, TILE_OFFSETS, TILE_COUNTS = 284, 317, 320, 322, 323, 324, 325
EXTRA_SAMPLES, SAMPLE_FORMAT = 338, 339
_LONG = 4
"""A tag's value is a number of four bytes."""
NONE, LZW, DEFLATE, PACKBITS = (1,), (5,), (8, 32946), (32773,)
_KINDS = {1: "u", 2: "i", 3: "f"}
_SMALLER, _MASK = 1, 4
"""What a page may say that it is: another page at a lower resolution, or where another page is transparent."""
_IMAGEJ_STACK = re.compile(rb"ImageJ=.*^images=(\d{1,9})$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """One page as its header describes it; nothing is decoded yet."""

    path: Path
    content: bytes
    order: str
    """Of bytes: < or >."""
    tags: dict[int, tuple[Any, ...]]

    def tag(self, number: int, default: int | None = None) -> int:
        """The first value of a tag."""
        values = self.tags.get(number, ())
        if not values and default is None:
            raise self.fault(f"it has no tag {number}")
        return int(values[0]) if values else int(default or 0)

    @property
    def width(self) -> int:
        return self.tag(WIDTH)

    @property
    def height(self) -> int:
        return self.tag(HEIGHT)

    @property
    def samples(self) -> int:
        return self.tag(SAMPLES, 1)

    def fault(self, what: str) -> DataError:
        """The error for what is wrong with this file."""
        return DataError(f"file {str(self.path)!r} is no TIFF that can be read: {what}")

    def dtype(self) -> np.dtype | None:
        """The type of one sample, in the file's byte order; None for packed bits and the like."""
        bits, formats = set(self.tags.get(BITS, (1,))), set(self.tags.get(SAMPLE_FORMAT, (1,)))
        kind = _KINDS.get(formats.pop()) if len(formats) == 1 else None
        if len(bits) != 1 or kind is None:
            return None
        size = bits.pop()
        if size not in ((16, 32, 64) if kind == "f" else (8, 16, 32, 64)):
            return None
        return np.dtype(f"{self.order}{kind}{size // 8}")

    def check_whole(self) -> None:
        """Refuses a page whose pieces lie beyond the end of the file."""
        for offsets, counts in ((STRIP_OFFSETS, STRIP_COUNTS), (TILE_OFFSETS, TILE_COUNTS)):
            for offset, count in zip(self.tags.get(offsets, ()), self.tags.get(counts, ()), strict=False):
                self._check_piece(int(offset), int(count))

    def _check_piece(self, offset: int, count: int) -> None:
        if offset + count > len(self.content):
            raise self.fault(f"it is cut short: bytes {offset} to {offset + count} of {len(self.content)}")

    def decode(self) -> np.ndarray | None:  # [H, W, samples]
        """The samples; None if the page is compressed or packed in a way that is not known here."""
        kind = self.dtype()
        if kind is None or self.tag(COMPRESSION, 1) not in (*NONE, *LZW, *DEFLATE, *PACKBITS):
            return None
        planes = self.samples if self.tag(PLANAR, 1) == 2 else 1
        depth = self.samples // planes
        tiled = TILE_WIDTH in self.tags
        across = self.tag(TILE_WIDTH) if tiled else self.width
        down = self.tag(TILE_HEIGHT) if tiled else min(self.tag(ROWS_PER_STRIP, self.height), self.height)
        if min(self.width, self.height, across, down, depth) < 1:
            raise self.fault(f"it is {self.width}x{self.height} in pieces of {across}x{down}")
        columns, rows = -(-self.width // across), -(-self.height // down)
        offsets = self.tags.get(TILE_OFFSETS if tiled else STRIP_OFFSETS, ())
        counts = self.tags.get(TILE_COUNTS if tiled else STRIP_COUNTS, ())
        if len(counts) < rows * columns * planes or len(offsets) < rows * columns * planes:
            raise self.fault(f"{rows * columns * planes} pieces are needed and {len(offsets)} are listed")
        made = np.empty((self.height, self.width, self.samples), kind.newbyteorder("="))
        number = 0
        for plane in range(planes):
            for top in range(0, self.height, down):
                for left in range(0, self.width, across):
                    high = down if tiled else min(down, self.height - top)
                    piece = self._piece(int(offsets[number]), int(counts[number]), (high, across, depth), kind)
                    part = made[top : top + down, left : left + across, plane : plane + depth]
                    part[...] = piece[: part.shape[0], : part.shape[1]]
                    number += 1
        return made

    def _piece(self, offset: int, count: int, shape: tuple[int, int, int], kind: np.dtype) -> np.ndarray:
        size = int(np.prod(shape)) * kind.itemsize
        self._check_piece(offset, count)
        data = _unpack(self.content[offset : offset + count], self.tag(COMPRESSION, 1), shape[0], size)
        if len(data) < size:
            raise self.fault(f"a piece holds {len(data)} bytes instead of {size}")
        return _unpredict(np.frombuffer(data, np.uint8, size), shape, kind, self.tag(PREDICTOR, 1), self)


def _unpack(data: bytes, compression: int, rows: int, size: int) -> bytes | bytearray:
    """The bytes of a piece of so many rows, at most ``size``; fewer if it is damaged."""
    if compression in DEFLATE:
        try:
            return inflate(data, size)
        except ValueError:
            return b""
    if compression in LZW:
        return _unpack_lzw(data, rows, size)
    return _unpack_bits(data, size) if compression in PACKBITS else data[:size]


def _unpack_bits(data: bytes, size: int) -> bytes:
    made, at = bytearray(), 0
    while at < len(data) and len(made) < size:
        code = data[at]
        if code < 128:
            made += data[at + 1 : at + 2 + code]
            at += code + 2
        else:
            made += data[at + 1 : at + 2] * (257 - code if code > 128 else 0)
            at += 2 if code > 128 else 1
    return bytes(made[:size])


def _unpack_lzw(data: bytes, rows: int, size: int) -> bytes:
    """LZW as Pillow unpacks it, from a page of grey bytes that is made around the piece: 60 times as fast as Python."""
    require_pillow()
    from PIL import TiffImagePlugin

    tags = (
        (WIDTH, size // rows), (HEIGHT, rows), (BITS, 8), (COMPRESSION, LZW[0]), (PHOTOMETRIC, 1), (SAMPLES, 1),
        (ROWS_PER_STRIP, rows), (STRIP_OFFSETS, 8), (STRIP_COUNTS, len(data)),
    )  # fmt: skip
    whole = data + bytes(len(data) % 2)
    listed = b"".join(struct.pack("<HHII", tag, _LONG, 1, value) for tag, value in sorted(tags))
    page = struct.pack("<2sHI", b"II", 42, 8 + len(whole)) + whole + struct.pack("<H", len(tags)) + listed + bytes(4)
    try:
        return bytes(TiffImagePlugin.TiffImageFile(io.BytesIO(page), "").tobytes())
    except (OSError, SyntaxError, ValueError, MemoryError):
        return b""


def _unpredict(raw: np.ndarray, shape: tuple[int, int, int], kind: np.dtype, predictor: int, page: Page) -> np.ndarray:
    if predictor == 1:
        return raw.view(kind).reshape(shape)
    rows, columns, depth = shape
    if predictor == 2 and kind.kind != "f":
        samples = raw.view(kind).reshape(shape).astype(kind.newbyteorder("="))
        return np.cumsum(samples, axis=1, dtype=samples.dtype)
    if predictor == 3 and kind.kind == "f":
        summed = np.cumsum(raw.reshape(rows, -1, depth), axis=1, dtype=np.uint8)
        # Bytes of equal weight lie together, the heaviest first.
        parts = np.ascontiguousarray(summed.reshape(rows, kind.itemsize, columns * depth).transpose(0, 2, 1))
        return parts.view(kind.newbyteorder(">")).reshape(shape)
    raise page.fault(f"its predictor is {predictor} for {kind} samples")


def read_pages(path: Path) -> Iterator[Page]:
    """The pages of a file, each with its header's tags; a chain of pages that never ends is refused."""
    return pages_in(read_whole(path), path)


def pages_in(content: bytes, path: Path) -> Iterator[Page]:
    """The pages in a file's bytes; ``path`` is what it is called, and is not opened."""
    order = {b"II": "<", b"MM": ">"}.get(content[:2], "")
    fault = Page(path, b"", order, {}).fault
    if not order or len(content) < 8:
        raise fault("it does not begin as one" if content else "it is empty")
    try:
        (version,) = struct.unpack_from(f"{order}H", content, 2)
        if version not in (42, 43):
            raise fault(f"its version is {version}")
        big = version == 43
        (at,) = struct.unpack_from(f"{order}Q" if big else f"{order}I", content, 8 if big else 4)
        if not at:
            raise fault("it has no page")
        seen: set[int] = set()
        while at:
            if at in seen or len(seen) > _MOST_PAGES:
                raise fault("its pages go round in a circle")
            seen.add(at)
            tags, at = _read_tags(content, at, order, big)
            page = Page(path, content, order, tags)
            yield from _imagej_stack(page) if not at and len(seen) == 1 else [page]
    except (struct.error, OverflowError) as error:
        raise fault(f"it is cut short ({error})") from error


def picture_pages(content: bytes, path: Path) -> list[tuple[int, Page]]:
    """The pages that are pictures of their own, each with its number among all: no smaller copies of them, as pyramids
    and previews have, and no masks.
    """
    every = list(enumerate(pages_in(content, path)))
    widest = max((page.tag(WIDTH, 0) for _, page in every if not page.tag(SUBFILE, 0) & (_SMALLER | _MASK)), default=0)
    return [(number, page) for number, page in every if not _belongs_to_another(page, widest)] or every


def _belongs_to_another(page: Page, widest: int) -> bool:
    kind = page.tag(SUBFILE, 0)
    return bool(kind & _MASK or (kind & _SMALLER and page.tag(WIDTH, 0) < widest))


def _imagej_stack(page: Page) -> Iterator[Page]:
    """The pages of a file with one header: ImageJ describes only the first of a stack that is too large for its format,
    and the others lie behind it, uncompressed.
    """
    said = _IMAGEJ_STACK.match(b"".join(v for v in page.tags.get(DESCRIPTION, ()) if isinstance(v, bytes)))
    kind = page.dtype()
    if said is None or kind is None or page.tag(COMPRESSION, 1) not in NONE or STRIP_OFFSETS not in page.tags:
        yield page
        return
    if int(said[1]) > _MOST_PAGES:
        raise page.fault(f"ImageJ says that it has {int(said[1])} pages, more than {_MOST_PAGES}")
    size = page.width * page.height * page.samples * kind.itemsize
    for number in range(max(1, int(said[1]))):
        place = {
            STRIP_OFFSETS: (page.tag(STRIP_OFFSETS) + number * size,),
            STRIP_COUNTS: (size,),
            ROWS_PER_STRIP: (page.height,),
        }
        yield page if number == 0 else replace(page, tags=page.tags | place)


def _read_tags(content: bytes, at: int, order: str, big: bool) -> tuple[dict[int, tuple[Any, ...]], int]:
    """The tags at a place of the file, and where the next page's are."""
    (num,) = struct.unpack_from(f"{order}Q" if big else f"{order}H", content, at)
    at += 8 if big else 2
    size, inline = (20, 8) if big else (12, 4)
    if at + num * size > len(content):
        raise struct.error(f"{num} tags at byte {at} of {len(content)}")
    tags: dict[int, tuple[Any, ...]] = {}
    for n in range(num):
        tag, kind, count = struct.unpack_from(f"{order}HH{'Q' if big else 'I'}", content, at + n * size)
        layout = _SIZES.get(kind)
        if layout is None or count > _MOST_VALUES:
            continue
        packed = struct.Struct(f"{order}{count * int(layout[:-1] or 1)}{layout[-1]}")
        where = at + n * size + size - inline
        if packed.size > inline:
            (where,) = struct.unpack_from(f"{order}{'Q' if big else 'I'}", content, where)
        tags[tag] = packed.unpack_from(content, where)
    (following,) = struct.unpack_from(f"{order}{'Q' if big else 'I'}", content, at + num * size)
    return tags, following


def write_tiff(picture: np.ndarray) -> bytes:  # [H, W] or [H, W, 3]
    """A TIFF of one page with these samples, compressed by Deflate; the same picture always gives the same bytes."""
    kind = {"u": 1, "i": 2, "f": 3}.get(picture.dtype.kind)
    if kind is None or picture.ndim not in (2, 3) or 0 in picture.shape:
        raise DataError(f"a {picture.dtype} array of {list(picture.shape)} cannot be a TIFF", expected="[H, W] numbers")
    height, width = picture.shape[:2]
    samples = picture.shape[2] if picture.ndim == 3 else 1
    data = np.ascontiguousarray(picture, picture.dtype.newbyteorder("<"))
    rows = max(1, min(height, (1 << 18) // max(1, data[:1].nbytes)))
    strips = [deflate(data[top : top + rows].tobytes()) for top in range(0, height, rows)]
    counts = [len(strip) for strip in strips]
    offsets = [8 + sum(counts[:n]) for n in range(len(strips))]
    end = 8 + sum(counts) + sum(counts) % 2
    tags = [
        (WIDTH, "I", [width]), (HEIGHT, "I", [height]), (BITS, "H", [data.dtype.itemsize * 8] * samples),
        (COMPRESSION, "H", [DEFLATE[0]]), (PHOTOMETRIC, "H", [2 if samples >= 3 else 1]),
        (STRIP_OFFSETS, "I", offsets), (SAMPLES, "H", [samples]), (ROWS_PER_STRIP, "I", [rows]),
        (STRIP_COUNTS, "I", counts), (PLANAR, "H", [1]), (SAMPLE_FORMAT, "H", [kind] * samples),
    ]  # fmt: skip
    after = end + 2 + 12 * len(tags) + 4
    entries, extra = b"", b""
    for number, letter, values in tags:
        packed = struct.pack(f"<{len(values)}{letter}", *values)
        inline = packed.ljust(4, b"\0") if len(packed) <= 4 else struct.pack("<I", after + len(extra))
        extra += packed + b"\0" * (len(packed) % 2) if len(packed) > 4 else b""
        entries += struct.pack("<HHI", number, 3 if letter == "H" else 4, len(values)) + inline
    body = b"".join(strips).ljust(end - 8, b"\0")
    return b"II*\0" + struct.pack("<I", end) + body + struct.pack("<H", len(tags)) + entries + bytes(4) + extra
