"""PLY meshes: text and binary, both byte orders; vertex colours, texture coordinates of vertices or corners."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hotlap.data.mesh_file import Material, Mesh, MeshFileError
from hotlap.data.ply import TYPES

INDEX_NAMES = ("vertex_indices", "vertex_index")
UV_NAMES = (("s", "t"), ("u", "v"), ("texture_u", "texture_v"))
ORDERS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}

Columns = dict[str, Any]
"""A property's values: an array, or a list of arrays where rows differ in length."""


@dataclass
class _Element:
    name: str
    count: int
    properties: list[tuple[str, str, str]] = field(default_factory=list)
    """Name, kind of the values, and kind of the count before them ('' for a single value)."""


def parse(content: bytes, path: Path) -> Mesh:
    """The mesh in a PLY file; polygons become fans of triangles."""
    try:
        order, elements, body, texture = _read_header(content)
        tables = _read_text(elements, body) if order == "" else _read_binary(elements, body, order)
    except (ValueError, IndexError, KeyError) as error:
        raise MeshFileError(str(path), str(error)) from error
    if "vertex" not in tables or not {"x", "y", "z"} <= set(tables["vertex"]):
        raise MeshFileError(str(path), "it has no element 'vertex' with x, y and z")
    return _assemble(tables, path, texture)


def _read_header(content: bytes) -> tuple[str, list[_Element], bytes, str]:
    head, found, body = content.partition(b"end_header")
    if not content.startswith(b"ply") or not found:
        raise ValueError("it does not begin with a PLY header")
    body = body[2:] if body.startswith(b"\r\n") else body[1:]
    order, texture = "?", ""
    elements: list[_Element] = []
    for line in head.decode("ascii", errors="replace").splitlines():
        words = line.split()
        if words[:1] == ["format"]:
            order = ORDERS.get(words[1], "?")
        elif words[:1] == ["element"]:
            elements.append(_Element(words[1], int(words[2])))
        elif words[:2] == ["property", "list"]:
            elements[-1].properties.append((words[4], TYPES[words[3]], TYPES[words[2]]))
        elif words[:1] == ["property"]:
            elements[-1].properties.append((words[2], TYPES[words[1]], ""))
        elif words[:2] == ["comment", "TextureFile"]:
            texture = " ".join(words[2:])
    if order == "?":
        raise ValueError("its format is neither ascii, binary_little_endian nor binary_big_endian")
    return order, elements, body, texture


def _read_text(elements: list[_Element], body: bytes) -> dict[str, Columns]:
    words = body.split()
    at, tables = 0, {}
    for element in elements:
        rows: dict[str, list[Any]] = {name: [] for name, _, _ in element.properties}
        if all(count == "" for _, _, count in element.properties):
            width = len(element.properties)
            block = words[at : at + width * element.count]
            if len(block) < width * element.count:
                raise ValueError(_cut_short(element, len(block) // max(width, 1)))
            table = np.array(block, dtype=np.float64).reshape(-1, width)
            tables[element.name] = {name: table[:, i] for i, (name, _, _) in enumerate(element.properties)}
            at += width * element.count
            continue
        for row in range(element.count):
            for name, _, count in element.properties:
                if at >= len(words):
                    raise ValueError(_cut_short(element, row))
                size = int(words[at]) if count else 1
                at += bool(count)
                values = np.array(words[at : at + size], dtype=np.float64)
                if len(values) < size:
                    raise ValueError(_cut_short(element, row))
                rows[name].append(values if count else values[0])
                at += size
        tables[element.name] = {name: _stacked(values) for name, values in rows.items()}
    return tables


def _cut_short(element: _Element, rows: int) -> str:
    return f"it is cut short: {rows} of {element.count} rows of element {element.name!r} are there"


def _stacked(values: list[Any]) -> Any:
    same = len({np.shape(value) for value in values}) <= 1
    return np.array(values) if same else values


def _read_binary(elements: list[_Element], body: bytes, order: str) -> dict[str, Columns]:
    at, tables = 0, {}
    for element in elements:
        tables[element.name], at = _read_rows(element, body, at, order)
    return tables


def _read_rows(element: _Element, body: bytes, at: int, order: str) -> tuple[Columns, int]:
    """All rows in one go if the lists of all are as long as those of the first; else row by row."""
    if element.count == 0:
        return {name: np.empty(0) for name, _, _ in element.properties}, at
    first, _ = _read_row(element, body, at, order, 0)
    layout: list[Any] = []
    for name, kind, count in element.properties:
        layout += [(f"count of {name}", order + count)] if count else []
        layout.append((name, order + kind, (len(first[name]),)) if count else (name, order + kind))
    dtype = np.dtype(layout)
    if len(body) - at >= dtype.itemsize * element.count:
        table = np.frombuffer(body, dtype, element.count, at)
        lists = [name for name, _, count in element.properties if count]
        if all((table[f"count of {name}"] == len(first[name])).all() for name in lists):
            return {name: table[name] for name, _, _ in element.properties}, at + dtype.itemsize * element.count
    rows: dict[str, list[Any]] = {name: [] for name, _, _ in element.properties}
    for number in range(element.count):
        row, at = _read_row(element, body, at, order, number)
        for name, value in row.items():
            rows[name].append(value)
    return {name: _stacked(values) for name, values in rows.items()}, at


def _read_row(element: _Element, body: bytes, at: int, order: str, number: int) -> tuple[Columns, int]:
    row: Columns = {}
    for name, kind, count in element.properties:
        size = 1
        if count:
            counts = np.frombuffer(_piece(element, body, at, np.dtype(count).itemsize, number), order + count)
            size, at = int(counts[0]), at + np.dtype(count).itemsize
            if size < 0:
                raise ValueError(f"row {number} of element {element.name!r} has a list of {size} values")
        length = np.dtype(kind).itemsize * size
        values = np.frombuffer(_piece(element, body, at, length, number), order + kind)
        row[name] = values if count else values[0]
        at += length
    return row, at


def _piece(element: _Element, body: bytes, at: int, length: int, number: int) -> bytes:
    if at + length > len(body):
        raise ValueError(_cut_short(element, number))
    return body[at : at + length]


def _assemble(tables: dict[str, Columns], path: Path, texture: str) -> Mesh:
    vertex, face = tables["vertex"], tables.get("face", {})
    vertices = np.stack([np.asarray(vertex[axis], np.float64) for axis in "xyz"], axis=1)
    lists = next((face[name] for name in INDEX_NAMES if name in face), np.empty((0, 3)))
    polygons = [np.asarray(row) for row in lists] if isinstance(lists, list) else lists
    faces, corners = _triangles(polygons, path)
    uvs = _uvs(vertex, face, faces, corners)
    colours = None
    if {"red", "green", "blue"} <= set(vertex):
        colours = np.stack([np.asarray(vertex[name], np.float64) for name in ("red", "green", "blue")], axis=1)
        colours = colours / 255 if colours.size and colours.max() > 1 else colours
    materials: tuple[Material, ...] = ()
    file = path.parent / texture
    if texture and uvs is not None and file.is_file():
        materials = (Material(name=Path(texture).stem, texture=file.read_bytes()),)
    return Mesh(
        vertices=vertices,
        faces=faces,
        uvs=uvs,
        colours=colours,
        materials=materials,
        face_materials=np.zeros(len(faces), np.int64) if materials else None,
    )


def _triangles(polygons: Any, path: Path) -> tuple[np.ndarray, np.ndarray]:  # each [F, 3]
    """Vertices of triangles, and which polygon's corner each was, as polygon * 256 + corner."""
    if isinstance(polygons, np.ndarray) and polygons.ndim == 2 and polygons.shape[1] == 3:
        faces = polygons.astype(np.int64)
        return faces, np.arange(len(faces))[:, None] * 256 + np.arange(3)
    faces_of, corners_of = [], []
    for number, polygon in enumerate(polygons):
        size = len(polygon)
        if not 3 <= size <= 255:
            raise MeshFileError(str(path), f"face {number} has {size} corners")
        fan = np.stack([np.zeros(size - 2, np.int64), np.arange(1, size - 1), np.arange(2, size)], axis=1)
        faces_of.append(np.asarray(polygon, np.int64)[fan])
        corners_of.append(number * 256 + fan)
    if not faces_of:
        return np.empty((0, 3), np.int64), np.empty((0, 3), np.int64)
    return np.concatenate(faces_of), np.concatenate(corners_of)


def _uvs(vertex: Columns, face: Columns, faces: np.ndarray, corners: np.ndarray) -> np.ndarray | None:
    if "texcoord" in face and len(faces):
        lists = face["texcoord"]
        return np.stack(
            [np.asarray(lists[c // 256], np.float64).reshape(-1, 2)[c % 256] for c in corners.reshape(-1)]
        ).reshape(-1, 3, 2)
    for names in UV_NAMES:
        if set(names) <= set(vertex) and len(faces) and faces.min() >= 0 and faces.max() < len(vertex["x"]):
            return np.stack([np.asarray(vertex[name], np.float64) for name in names], axis=1)[faces]
    return None


def files(path: Path, mesh: Mesh) -> dict[Path, bytes]:
    """A binary PLY file, with vertex colours if there are any; textures are not kept."""
    layout = [(axis, "<f4") for axis in "xyz"]
    names = ("red", "green", "blue") if mesh.colours is not None else ()
    layout += [(name, "u1") for name in names]
    rows = np.zeros(len(mesh.vertices), np.dtype(layout))
    for i, axis in enumerate("xyz"):
        rows[axis] = mesh.vertices[:, i]
    for i, name in enumerate(names):
        assert mesh.colours is not None
        rows[name] = np.round(mesh.colours[:, i].clip(0, 1) * 255)
    faces = np.zeros(len(mesh.faces), np.dtype([("count", "u1"), ("index", "<i4", (3,))]))
    faces["count"], faces["index"] = 3, mesh.faces
    header = ["ply", "format binary_little_endian 1.0", f"element vertex {len(rows)}"]
    header += [f"property float {axis}" for axis in "xyz"] + [f"property uchar {name}" for name in names]
    header += [f"element face {len(faces)}", "property list uchar int vertex_indices", "end_header"]
    return {path: ("\n".join(header) + "\n").encode() + rows.tobytes() + faces.tobytes()}
