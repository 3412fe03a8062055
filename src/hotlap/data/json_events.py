"""The events of a Chrome trace one after another, from a file too large to decode whole and perhaps cut short.

Only a window of the text is in memory. Events are decoded many at a time by the standard library's scanner, which
costs about as much as decoding the file in one go.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from hotlap.base.errors import DataError

WINDOW_BYTES = 1 << 22
"""Read at a time: long enough that the cost of joining windows vanishes, short beside the memory of the columns."""
MAX_EVENT_CHARS = 1 << 22
"""What is longer than this and still not whole is damaged; the longest events seen have a few thousand."""
HEAD_CHARS = 1 << 26
"""The list of events must begin within this much text; metadata before it is a few KiB in every trace seen."""
_EVENTS_KEY = re.compile(r'"traceEvents"\s*:\s*\[')
_NEXT = re.compile(r"[\s,]*")
_RESYNC = re.compile(r"\}\s*,\s*(?=\{)")
_DECODER = json.JSONDecoder(strict=False)  # names of kernels and files may hold raw control characters


class EventStream:
    """Iterates over the events of one file, in lists; ``head``, ``tail`` and ``warnings`` tell the rest afterwards."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head: dict[str, Any] = {}
        """What stands before the events: schema, devices, rank."""
        self.tail: dict[str, Any] = {}
        """What stands after them."""
        self.warnings: list[str] = []
        self.cut = False
        """Whether the file ended before its events did."""
        self.bytes_read = 0

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        try:
            with open(self.path, "rb") as raw:
                yield from self._events(self._text(raw))
        except OSError as error:
            raise DataError(
                f"trace {str(self.path)!r} cannot be read: {error.strerror or error}", remedy="Check the path"
            ) from error

    def _text(self, raw: BinaryIO) -> Iterator[str]:
        """The file's text in windows; a gzip file that was cut gives what it holds."""
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        source: Any = gzip.GzipFile(fileobj=raw) if packed else raw
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        while True:
            try:
                window = source.read1(WINDOW_BYTES) if packed else source.read(WINDOW_BYTES)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                self.cut = True
                self.warnings.append(f"The compressed file is damaged or cut ({error}); what came before was read.")
                return
            if not window:
                return
            self.bytes_read += len(window)
            yield decoder.decode(window)

    def _events(self, windows: Iterator[str]) -> Iterator[list[dict[str, Any]]]:
        text, place = self._begin(windows)
        skipped = 0
        while True:
            found, place, ended = _decode_many(text, place)
            if found:
                yield found
            if ended:
                self.tail = _as_members("{" + text[place:].lstrip(" \r\n\t,") + "".join(windows))
                break
            more = next(windows, None) if len(text) - place < MAX_EVENT_CHARS else None
            if more is not None:
                text, place = text[place:] + more, 0
                continue
            # No whole event follows, and either the file is over or the text beyond is long: damage, or the cut.
            resync = _RESYNC.search(text, place)
            if resync is None:
                self._note_cut(text[place:])
                break
            skipped += 1
            place = resync.end()
        if skipped:
            self.warnings.append(f"{skipped} damaged event(s) were left out.")

    def _begin(self, windows: Iterator[str]) -> tuple[str, int]:
        """The text from the list of events on, and where its first element stands."""
        text = ""
        for window in windows:
            text += window
            opening = text.lstrip("\ufeff \r\n\t")[:1]
            if opening == "[":
                return text, text.index("[") + 1
            match = _EVENTS_KEY.search(text)
            if match:
                self.head = _as_members(text[: match.start()].rstrip().rstrip(",") + "}")
                return text, match.end()
            if opening != "{" or len(text) > HEAD_CHARS:
                break
        raise DataError(
            f"trace {str(self.path)!r} holds no list of events",
            expected="a Chrome trace: JSON with 'traceEvents', as torch.profiler's export_chrome_trace writes it",
            remedy="It is another kind of file, or was cut before its first event",
        )

    def _note_cut(self, rest: str) -> None:
        if not self.cut:
            self.cut = True
            self.warnings.append(f"The trace ends in the middle of its events ({len(rest)} characters were left over).")


def _decode_many(text: str, place: int) -> tuple[list[dict[str, Any]], int, bool]:
    """Whole events from ``place`` on, where they end, and whether the list's end was met."""
    found: list[dict[str, Any]] = []
    scan, skip = _DECODER.raw_decode, _NEXT.match
    while True:
        place = skip(text, place).end()  # type: ignore[union-attr]
        following = text[place : place + 1]
        if following == "]":
            return found, place + 1, True
        if following != "{":
            return found, place, False
        try:
            event, place = scan(text, place)
        except ValueError:
            return found, place, False
        found.append(event)


def _as_members(text: str) -> dict[str, Any]:
    """The members of an object written loosely around the events; {} when they cannot be read."""
    try:
        data = json.loads(text, strict=False)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}
