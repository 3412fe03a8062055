"""Files as bytes: read from the front, where no count is believed before the file is seen to be long enough; written
whole or not at all.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path

from hotlap.base.errors import DataError, StorageError
from hotlap.records.run import write_atomic

ZIP_FAULTS = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError)
"""What zipfile raises for damaged archives. A RuntimeError is an encrypted part, or, as NotImplementedError, a version
or packing that it does not know; a ValueError is a name that is no text, or a place before the file's begin."""


def read_whole(path: Path) -> bytes:
    """A file's content."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error


def write_whole(path: Path, content: bytes) -> None:
    """``path`` holds ``content`` whole, or what it held before; the folders that it lies in are made."""
    make_folders(path)
    write_atomic(path, content)


def make_folders(path: Path) -> None:
    """Makes the folders that a file is to lie in."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "Not a directory" if isinstance(error, FileExistsError) else error.strerror or error
        raise StorageError(
            f"cannot write {str(path)!r}: its folder cannot be made: {why}", remedy="Choose another place"
        ) from error


def read_text(path: Path) -> str:
    """A text file's content; bytes that are not UTF-8 are an error, a byte order mark is dropped."""
    try:
        return read_whole(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"file {str(path)!r} is not text: byte {error.start} is not UTF-8") from error


def unreadable(path: Path, error: OSError) -> DataError:
    """The error for a file that the system will not give."""
    return DataError(
        f"file {str(path)!r} cannot be read: {error.strerror or error}", remedy="Check the path and who may read it"
    )


class Front:
    """What is still to be read of a file's content."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path, self.content, self.at = path, content, 0

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return len(self.content) - self.at

    def take(self, layout: struct.Struct) -> tuple:
        """The next values of a layout."""
        self.need(1, layout.size, "a record")
        values = layout.unpack_from(self.content, self.at)
        self.at += layout.size
        return values

    def skip(self, count: int, size: int, what: str) -> None:
        """Moves past ``count`` records of ``size`` bytes."""
        self.need(count, size, what)
        self.at += count * size

    def need(self, count: int, size: int, what: str) -> None:
        """Refuses a count that the rest of the file has no room for."""
        if count * size > self.left:
            raise DataError(
                f"file {str(self.path)!r} is cut short or its header is wrong: {count} x {what} at byte {self.at} "
                f"need {count * size} bytes, {self.left} are left",
                remedy="Copy or export the file again",
            )

    def name(self) -> str:
        """The next text, up to its zero byte."""
        end = self.content.find(b"\0", self.at, self.at + MAX_NAME)
        if end < 0:
            raise DataError(
                f"file {str(self.path)!r} has a name without an end at byte {self.at}",
                expected=f"at most {MAX_NAME} bytes and a zero byte",
            )
        text = self.content[self.at : end]
        self.at = end + 1
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"file {str(self.path)!r} has a name that is not UTF-8: {text!r}") from error

    def end(self) -> None:
        """Refuses what follows the last record: the counts before it were wrong."""
        if self.left:
            raise DataError(
                f"file {str(self.path)!r} has {self.left} bytes after its last record", remedy="Export the file again"
            )


MAX_NAME = 4096
"""The longest path that a Linux program may name."""
