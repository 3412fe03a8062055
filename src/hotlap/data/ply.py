"""PLY files as tables: the header, and the rows of the elements asked for; text, and both binary byte orders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hotlap.base.errors import DataError
from hotlap.data.file_bytes import unreadable

TYPES = {
    "char": "i1", "int8": "i1", "uchar": "u1", "uint8": "u1", "short": "i2", "int16": "i2", "ushort": "u2",
    "uint16": "u2", "int": "i4", "int32": "i4", "uint": "u4", "uint32": "u4", "float": "f4", "float32": "f4",
    "double": "f8", "float64": "f8",
}  # fmt: skip
"""NumPy's code of each kind of number that a header may name."""
ORDERS = {"binary_little_endian": "<", "binary_big_endian": ">", "ascii": "="}
MAX_HEADER = 1 << 20
MAX_PROPERTIES = 4096
MAX_SPACE = 4096
"""Bytes after the last row that are looked at."""


@dataclass(frozen=True)
class Element:
    """One table of a file."""

    name: str
    count: int
    properties: tuple[tuple[str, str], ...]
    """Name and NumPy code of each column."""
    lists: bool
    """Whether a column is a list, so that rows have no one size."""


@dataclass(frozen=True)
class Header:
    """What a file says of itself."""

    path: Path
    order: str
    elements: tuple[Element, ...]
    comments: tuple[str, ...]
    start: int
    """The byte after the header."""
    after: int = 0
    """Bytes after the last row, where all were read."""

    def names(self, element: str) -> tuple[str, ...]:
        """The columns of an element; empty if the file does not have it."""
        for candidate in self.elements:
            if candidate.name == element:
                return tuple(name for name, _ in candidate.properties)
        return ()


def read_ply(path: Path, wanted: Iterable[str]) -> tuple[Header, dict[str, np.ndarray]]:
    """The header of a file, and those of the wanted elements that it has, as structured arrays."""
    left = set(wanted)
    tables: dict[str, np.ndarray] = {}
    try:
        with path.open("rb") as file:
            header = _read_header(path, file)
            left &= {element.name for element in header.elements}
            for element in header.elements:
                if not left:
                    break
                tables[element.name] = _read_rows(file, header, element)
                left.discard(element.name)
            if len(tables) == len(header.elements):
                header = replace(header, after=_bytes_left(file))
    except OSError as error:
        raise unreadable(path, error) from error
    return header, tables


def _bytes_left(file: BinaryIO) -> int:
    """What follows in the file; 0 for empty space."""
    here = file.tell()
    return file.seek(0, 2) - here if file.read(MAX_SPACE).strip(b" \t\r\n\0") else 0


def check_end(header: Header) -> None:
    """Refuses what follows the last row: the header counts too few, and the rest would be lost."""
    if header.after:
        raise DataError(
            f"file {str(header.path)!r} has {header.after} bytes after its last row, or its header is wrong",
            remedy="Copy or export the file again",
        )


def _read_header(path: Path, file: BinaryIO) -> Header:
    content = file.read(MAX_HEADER)
    if not content.startswith((b"ply\n", b"ply\r")):
        raise DataError(f"file {str(path)!r} is no PLY file: it begins with {content[:8]!r}")
    at = content.find(b"end_header")
    end = content.find(b"\n", at)
    if at < 0 or end < 0:
        raise DataError(f"file {str(path)!r} has no end of its header in {len(content)} bytes")
    order, comments = "", []
    elements: list[tuple[str, int, list[tuple[str, str]], bool]] = []
    for line in content[:at].decode("latin-1").replace("\r", "\n").split("\n")[1:]:
        words = line.split()
        if not words or words[0] == "obj_info":
            continue
        if words[0] == "comment":
            comments.append(line.strip()[8:])
        elif words[0] == "format" and len(words) >= 2 and words[1] in ORDERS:
            order = ORDERS[words[1]]
        elif words[0] == "element" and len(words) == 3 and words[2].isdecimal() and len(words[2]) < 20:
            elements.append((words[1], int(words[2]), [], False))
        elif words[0] == "property" and len(words) == 3 and words[1] in TYPES and elements:
            elements[-1][2].append((words[2], TYPES[words[1]]))
        elif words[0] == "property" and len(words) == 5 and words[1] == "list" and elements:
            elements[-1] = (*elements[-1][:3], True)
        else:
            raise DataError(f"file {str(path)!r} has a header line that is not understood: {line[:80]!r}")
    if not order:
        raise DataError(f"file {str(path)!r} does not name its format", expected=" or ".join(ORDERS))
    file.seek(end + 1)
    made = tuple(Element(name, count, tuple(columns), lists) for name, count, columns, lists in elements)
    return _checked(Header(path, order, made, tuple(comments), end + 1))


def _checked(header: Header) -> Header:
    for element in header.elements:
        names = [name for name, _ in element.properties]
        twice = sorted({name for name in names if names.count(name) > 1}) if len(names) <= MAX_PROPERTIES else ["..."]
        if twice:
            raise DataError(
                f"file {str(header.path)!r} has the property {twice[0]!r} of {element.name!r} twice, or more than "
                f"{MAX_PROPERTIES} properties"
            )
    return header


def _read_rows(file: BinaryIO, header: Header, element: Element) -> np.ndarray:
    """The rows of an element at which the file stands."""
    path = str(header.path)
    if element.lists or not element.properties:
        raise DataError(
            f"file {path!r} has an element {element.name!r} whose rows have no fixed size",
            expected="it after those with the splats or points",
        )
    layout = np.dtype(
        [(name, code if header.order == "=" else header.order + code) for name, code in element.properties]
    )
    here = file.tell()
    left = file.seek(0, 2) - here
    file.seek(here)
    least = element.count * (layout.itemsize if header.order != "=" else 2 * len(element.properties))
    if least > left + 1:  # the last line of a text may lack its end
        raise DataError(
            f"file {path!r} is cut short or its header is wrong: {element.count} x {element.name} need {least} bytes, "
            f"{left} are left",
            remedy="Copy or export the file again",
        )
    if header.order == "=":
        return _text_rows(file, header, element, layout)
    if least > left:
        raise DataError(
            f"file {path!r} is cut short: {element.count} x {element.name} need {least} bytes, {left} are left"
        )
    return np.frombuffer(file.read(least), layout)


def _text_rows(file: BinaryIO, header: Header, element: Element, layout: np.dtype) -> np.ndarray:
    rows = np.zeros(element.count, layout)
    for number in range(element.count):
        words = file.readline().split()
        try:
            if len(words) != len(element.properties):
                raise ValueError(f"{len(words)} numbers, not {len(element.properties)}")
            rows[number] = tuple(
                float(word) if code[0] == "f" else int(word)
                for word, (_, code) in zip(words, element.properties, strict=True)
            )
        except (ValueError, OverflowError) as error:
            raise DataError(f"file {str(header.path)!r}, row {number} of {element.name!r}: {error}") from error
    return rows


def columns(table: np.ndarray, names: Iterable[str]) -> np.ndarray:  # [N, len(names)] float32
    """Some columns of a table side by side."""
    wanted, every = list(names), list(table.dtype.names or ())
    if all(table.dtype[name] == np.dtype("<f4") for name in every) and every:
        # One pass over the rows; column by column, each would read every row's cache lines again.
        return table.view("<f4").reshape(len(table), len(every))[:, [every.index(name) for name in wanted]]
    made = np.empty((len(table), len(wanted)), np.float32)
    with np.errstate(over="ignore"):  # a double beyond float32 becomes infinite, which callers look for
        for position, name in enumerate(wanted):
            made[:, position] = table[name]
    return made


def read_points(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Points [P, 3] float32 and colours [P, 3] uint8 of a point cloud; grey where the file has no colours."""
    header, tables = read_ply(path, ["vertex"])
    names = header.names("vertex")
    if not {"x", "y", "z"} <= set(names):
        raise DataError(f"file {str(path)!r} has no points", expected="an element 'vertex' with x, y and z")
    check_end(header)
    table = tables["vertex"]
    colors = np.full((len(table), 3), 128, np.uint8)
    if {"red", "green", "blue"} <= set(names):
        values = columns(table, ("red", "green", "blue"))
        scale = 255.0 if table["red"].dtype.kind == "f" else 1.0
        colors = np.nan_to_num(values * scale).clip(0, 255).round().astype(np.uint8)
    return columns(table, ("x", "y", "z")), colors
