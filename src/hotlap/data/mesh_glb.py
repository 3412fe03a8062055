"""GLB, the binary form of glTF 2.0: all triangles of a scene as one mesh, with base colours and their textures."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from hotlap.data.mesh_file import Material, Mesh, MeshFileError

MAGIC, JSON_CHUNK, BINARY_CHUNK = 0x46546C67, 0x4E4F534A, 0x004E4942
KINDS = {5120: "<i1", 5121: "<u1", 5122: "<i2", 5123: "<u2", 5125: "<u4", 5126: "<f4"}
WIDTHS = {"SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4, "MAT4": 16}
TRIANGLES, STRIP, FAN = 4, 5, 6
UNREADABLE = ("KHR_draco_mesh_compression", "EXT_meshopt_compression")
DEEPEST = 64
"""Nodes above one another; a file that goes deeper has a node among its own children."""


def parse(content: bytes, path: Path) -> Mesh:
    """The scene of a GLB file as one mesh in the scene's frame; lines and points are left out."""
    try:
        scene = _Scene(*_read_chunks(content), path)
        return scene.mesh()
    except ValueError as error:
        raise MeshFileError(str(path), str(error)) from error
    except (LookupError, TypeError, AttributeError, OverflowError, RecursionError, struct.error) as error:
        reason = f"its scene is not as glTF describes one ({type(error).__name__}: {error})"
        raise MeshFileError(str(path), reason) from error


def _read_chunks(content: bytes) -> tuple[dict[str, Any], bytes]:
    if len(content) < 12:
        raise ValueError(f"it is cut short: {len(content)} bytes are less than a GLB header")
    magic, version, length = struct.unpack_from("<III", content)
    if magic != MAGIC:
        raise ValueError("it does not begin with a GLB header")
    if version != 2:
        raise ValueError(f"its glTF version is {version}, not 2")
    if length > len(content):
        raise ValueError(f"it is cut short: {len(content)} of {length} bytes are there")
    document, binary, at = {}, b"", 12
    while at + 8 <= length:
        size, kind = struct.unpack_from("<II", content, at)
        chunk = content[at + 8 : at + 8 + size]
        if kind == JSON_CHUNK:
            document = json.loads(chunk)
        elif kind == BINARY_CHUNK:
            binary = chunk
        at += 8 + size
    for name in document.get("extensionsRequired", []):
        if name in UNREADABLE:
            raise ValueError(f"it is compressed with {name}; export it without compression")
    return document, binary


class _Scene:
    """Collects the triangles of all nodes."""

    def __init__(self, document: dict[str, Any], binary: bytes, path: Path) -> None:
        self._document, self._binary, self._path = document, binary, path
        self._buffers: dict[int, bytes] = {}
        self._parts: list[dict[str, Any]] = []
        self._num_vertices = 0

    def mesh(self) -> Mesh:
        document = self._document
        scenes = document.get("scenes", [])
        roots = scenes[document.get("scene", 0)].get("nodes", []) if scenes else range(len(document.get("nodes", [])))
        for node in roots:
            self._take_node(node, np.eye(4), 0)
        parts = self._parts
        if not parts:
            return Mesh(vertices=np.empty((0, 3)), faces=np.empty((0, 3), np.int64))
        vertices = np.concatenate([part["vertices"] for part in parts])
        faces = np.concatenate([part["faces"] for part in parts])
        is_textured = any(part["uvs"] is not None for part in parts)
        is_coloured = any(part["colours"] is not None for part in parts)
        return Mesh(
            vertices=vertices,
            faces=faces,
            uvs=np.concatenate([_or_full(p["uvs"], (len(p["faces"]), 3, 2), np.nan) for p in parts])
            if is_textured
            else None,
            colours=np.concatenate([_or_full(p["colours"], p["vertices"].shape, 1.0) for p in parts])
            if is_coloured
            else None,
            materials=tuple(self._material(entry) for entry in document.get("materials", [])),
            face_materials=np.concatenate([np.full(len(p["faces"]), p["material"], np.int64) for p in parts])
            if document.get("materials")
            else None,
        )

    def _take_node(self, number: int, scene_from_parent: np.ndarray, depth: int) -> None:
        if depth > DEEPEST:
            raise ValueError(f"node {number} lies more than {DEEPEST} deep")
        node = self._document["nodes"][number]
        scene_from_node = scene_from_parent @ _matrix(node)
        if "mesh" in node:
            for primitive in self._document["meshes"][node["mesh"]]["primitives"]:
                self._take_primitive(primitive, scene_from_node)
        for child in node.get("children", []):
            self._take_node(child, scene_from_node, depth + 1)

    def _take_primitive(self, primitive: dict[str, Any], scene_from_node: np.ndarray) -> None:
        mode = primitive.get("mode", TRIANGLES)
        if mode not in (TRIANGLES, STRIP, FAN):
            return
        attributes = primitive["attributes"]
        local = self._accessor(attributes["POSITION"])
        vertices = local @ scene_from_node[:3, :3].T + scene_from_node[:3, 3]
        index = np.arange(len(vertices))
        if "indices" in primitive:
            index = self._accessor(primitive["indices"])[:, 0].astype(np.int64)
        faces = _as_triangles(index, mode)
        if np.linalg.det(scene_from_node[:3, :3]) < 0:
            faces = faces[:, ::-1]  # a mirrored node turns its triangles inside out
        material = primitive.get("material", -1)
        set_of_uvs = self._uv_set(material)
        uvs = None
        if f"TEXCOORD_{set_of_uvs}" in attributes and faces.size and faces.max() < len(vertices):
            uvs = self._accessor(attributes[f"TEXCOORD_{set_of_uvs}"])[faces] * (1, -1) + (0, 1)
        colours = self._accessor(attributes["COLOR_0"])[:, :3] if "COLOR_0" in attributes else None
        self._parts.append(
            {
                "vertices": vertices,
                "faces": faces + self._num_vertices,
                "uvs": uvs,
                "colours": colours,
                "material": material,
            }
        )
        self._num_vertices += len(vertices)

    def _accessor(self, number: int) -> np.ndarray:  # [count, width] float64
        accessor = self._document["accessors"][number]
        if "sparse" in accessor:
            raise ValueError(f"accessor {number} is sparse; export it without sparse accessors")
        kind, width, count = np.dtype(KINDS[accessor["componentType"]]), WIDTHS[accessor["type"]], accessor["count"]
        if "bufferView" not in accessor:
            raise ValueError(f"accessor {number} has no data")
        view = self._document["bufferViews"][accessor["bufferView"]]
        data = self._view(accessor["bufferView"])
        stride = view.get("byteStride") or kind.itemsize * width
        start = accessor.get("byteOffset", 0)
        if count and start + stride * (count - 1) + kind.itemsize * width > len(data):
            raise ValueError(f"accessor {number} reaches past the end of its buffer of {len(data)} bytes")
        values = np.ndarray((count, width), kind, data, start, (stride, kind.itemsize)).astype(np.float64)
        if accessor.get("normalized"):
            values = np.maximum(values / np.iinfo(kind).max, -1.0)
        return values

    def _view(self, number: int) -> bytes:
        view = self._document["bufferViews"][number]
        start = view.get("byteOffset", 0)
        return self._buffer(view["buffer"])[start : start + view["byteLength"]]

    def _buffer(self, number: int) -> bytes:
        if number not in self._buffers:
            uri = self._document["buffers"][number].get("uri")
            self._buffers[number] = self._binary if uri is None else self._resource(uri)
        return self._buffers[number]

    def _resource(self, uri: str) -> bytes:
        if uri.startswith("data:"):
            return base64.b64decode(uri.partition(",")[2])
        if Path(uri).is_absolute() or ".." in Path(uri).parts or "://" in uri:
            raise ValueError(f"it refers to {uri!r}, outside its own folder")
        try:
            return (self._path.parent / uri).read_bytes()
        except OSError as error:
            raise ValueError(f"it refers to {uri!r}: {error.strerror or error}") from error

    def _uv_set(self, material: int) -> int:
        texture = self._surface(material).get("baseColorTexture", {}) if material >= 0 else {}
        return int(texture.get("texCoord", 0))

    def _surface(self, material: int) -> dict[str, Any]:
        found: dict[str, Any] = self._document["materials"][material].get("pbrMetallicRoughness", {})
        return found

    def _material(self, entry: dict[str, Any]) -> Material:
        surface = entry.get("pbrMetallicRoughness", {})
        red, green, blue = surface.get("baseColorFactor", (1.0, 1.0, 1.0, 1.0))[:3]
        texture = None
        if "baseColorTexture" in surface:
            source = self._document["textures"][surface["baseColorTexture"]["index"]].get("source")
            if source is not None:
                image = self._document["images"][source]
                texture = self._view(image["bufferView"]) if "bufferView" in image else self._resource(image["uri"])
        return Material(name=entry.get("name", ""), colour=(red, green, blue), texture=texture)


def _or_full(values: np.ndarray | None, shape: tuple[int, ...], filler: float) -> np.ndarray:
    return np.full(shape, filler) if values is None else values


def _matrix(node: dict[str, Any]) -> np.ndarray:  # [4, 4]
    """parent_from_node."""
    if "matrix" in node:
        return np.array(node["matrix"], np.float64).reshape(4, 4).T
    x, y, z, w = node.get("rotation", (0.0, 0.0, 0.0, 1.0))
    turn = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )
    matrix = np.eye(4)
    matrix[:3, :3] = turn * np.array(node.get("scale", (1.0, 1.0, 1.0)))
    matrix[:3, 3] = node.get("translation", (0.0, 0.0, 0.0))
    return matrix


def _as_triangles(index: np.ndarray, mode: int) -> np.ndarray:  # [F, 3]
    if mode == TRIANGLES:
        if len(index) % 3:
            raise ValueError(f"a list of triangles has {len(index)} corners")
        return index.reshape(-1, 3)
    if mode == FAN:
        return np.stack([np.full(max(len(index) - 2, 0), index[0]), index[1:-1], index[2:]], axis=1)
    faces = np.stack([index[:-2], index[1:-1], index[2:]], axis=1)
    faces[1::2] = faces[1::2, [1, 0, 2]]  # every second triangle of a strip runs the other way
    return faces


class _Packer:
    """Builds the document and the binary chunk together."""

    def __init__(self) -> None:
        self.binary = bytearray()
        self.document: dict[str, Any] = {"asset": {"version": "2.0", "generator": "hotlap"}}

    def view(self, data: bytes) -> int:
        self.binary += b"\0" * (-len(self.binary) % 4)
        views = self.document.setdefault("bufferViews", [])
        views.append({"buffer": 0, "byteOffset": len(self.binary), "byteLength": len(data)})
        self.binary += data
        return len(views) - 1

    def accessor(self, values: np.ndarray, kind: str, *, bounds: bool = False) -> int:
        component = 5125 if values.dtype == np.uint32 else 5126
        entry: dict[str, Any] = {"bufferView": self.view(values.tobytes()), "componentType": component}
        entry |= {"count": len(values), "type": kind}
        if bounds:
            entry |= {"min": values.min(axis=0).tolist(), "max": values.max(axis=0).tolist()}
        accessors = self.document.setdefault("accessors", [])
        accessors.append(entry)
        return len(accessors) - 1

    def packed(self) -> bytes:
        self.binary += b"\0" * (-len(self.binary) % 4)
        self.document["buffers"] = [{"byteLength": len(self.binary)}]
        text = json.dumps(self.document, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 4)
        chunks = struct.pack("<II", len(text), JSON_CHUNK) + text
        chunks += struct.pack("<II", len(self.binary), BINARY_CHUNK) + bytes(self.binary)
        return struct.pack("<III", MAGIC, 2, 12 + len(chunks)) + chunks


def files(path: Path, mesh: Mesh) -> dict[Path, bytes]:
    """One GLB file with everything in it."""
    packer = _Packer()
    numbers = mesh.face_materials if mesh.face_materials is not None else np.full(len(mesh.faces), -1)
    primitives = [_primitive(packer, mesh, numbers == number, int(number)) for number in np.unique(numbers)]
    for material in mesh.materials:
        _add_material(packer, material)
    packer.document |= {
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": primitives}],
    }
    return {path: packer.packed()}


def _primitive(packer: _Packer, mesh: Mesh, chosen: np.ndarray, material: int) -> dict[str, Any]:
    """The faces of one material; vertices whose corners differ in texture coordinates are repeated."""
    corners = mesh.faces[chosen].reshape(-1)
    uvs = np.empty((len(corners), 0))
    if mesh.uvs is not None and np.isfinite(mesh.uvs[chosen]).all():
        uvs = mesh.uvs[chosen].reshape(-1, 2)
    _, first, index = np.unique(np.column_stack([corners, uvs]), axis=0, return_index=True, return_inverse=True)
    positions = mesh.vertices[corners[first]].astype("<f4")
    attributes = {"POSITION": packer.accessor(positions, "VEC3", bounds=True)}
    if uvs.shape[1]:
        attributes["TEXCOORD_0"] = packer.accessor((uvs[first] * (1, -1) + (0, 1)).astype("<f4"), "VEC2")
    if mesh.colours is not None:
        attributes["COLOR_0"] = packer.accessor(mesh.colours[corners[first]].astype("<f4"), "VEC3")
    primitive: dict[str, Any] = {"attributes": attributes}
    primitive["indices"] = packer.accessor(index.reshape(-1).astype("<u4"), "SCALAR")
    return primitive | ({"material": material} if material >= 0 else {})


def _add_material(packer: _Packer, material: Material) -> None:
    document = packer.document
    surface: dict[str, Any] = {"baseColorFactor": [*material.colour, 1.0], "metallicFactor": 0.0}
    if material.texture is not None:
        kind = "image/png" if material.texture.startswith(b"\x89PNG") else "image/jpeg"
        images = document.setdefault("images", [])
        images.append({"bufferView": packer.view(material.texture), "mimeType": kind})
        textures = document.setdefault("textures", [])
        textures.append({"source": len(images) - 1})
        surface["baseColorTexture"] = {"index": len(textures) - 1}
    document.setdefault("materials", []).append(
        {"name": material.name, "pbrMetallicRoughness": surface, "doubleSided": True}
    )
