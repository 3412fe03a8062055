"""Wavefront OBJ: vertices with or without colours, texture coordinates, polygons, materials of MTL files."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hotlap.data.mesh_file import Material, Mesh, MeshFileError

TEXTURE_OPTIONS = {
    "-blendu": 1, "-blendv": 1, "-boost": 1, "-mm": 2, "-o": 3, "-s": 3, "-t": 3, "-texres": 1,
    "-clamp": 1, "-bm": 1, "-imfchan": 1, "-type": 1, "-cc": 1,
}  # fmt: skip
"""Options that may stand before a texture's file name, and how many words follow each."""


@dataclass
class _Parsed:
    vertices: list[list[float]] = field(default_factory=list)
    uvs: list[list[float]] = field(default_factory=list)
    corners: list[tuple[int, int]] = field(default_factory=list)
    """Vertex and texture coordinate of the corners of all triangles; -1 where a corner has no coordinate."""
    face_materials: list[int] = field(default_factory=list)
    materials: dict[str, Material] = field(default_factory=dict)
    current: int = -1


def parse(content: bytes, path: Path) -> Mesh:
    """The mesh in an OBJ file; polygons become fans of triangles."""
    found = _Parsed()
    text = content.decode("utf-8", errors="replace").replace("\\\r\n", " ").replace("\\\n", " ")
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words:
            continue
        try:
            _take_line(found, words, line, path)
        except (ValueError, IndexError) as error:
            raise MeshFileError(str(path), f"line {number}, {line.strip()[:60]!r}: {error}") from error
    return _assemble(found, path)


def _take_line(found: _Parsed, words: list[str], line: str, path: Path) -> None:
    kind = words[0]
    if kind == "v":
        if len(words) not in (4, 5, 7, 8):
            raise ValueError(f"{len(words) - 1} numbers are no vertex")
        found.vertices.append([float(word) for word in words[1:]])
    elif kind == "vt":
        values = [float(word) for word in words[1:3]]
        found.uvs.append(values if len(values) == 2 else [values[0], 0.0])
    elif kind == "f":
        _take_face(found, words[1:])
    elif kind == "usemtl":
        name = line.split(None, 1)[1].strip() if len(words) > 1 else ""
        found.materials.setdefault(name, Material(name=name))
        found.current = list(found.materials).index(name)
    elif kind == "mtllib" and len(words) > 1:
        _take_library(found, path.parent / line.split(None, 1)[1].strip())


def _take_face(found: _Parsed, words: list[str]) -> None:
    if len(words) < 3:
        raise ValueError(f"{len(words)} corners are no face")
    corners = []
    for word in words:
        parts = word.split("/")
        vertex = _index(parts[0], len(found.vertices))
        uv = _index(parts[1], len(found.uvs)) if len(parts) > 1 and parts[1] else -1
        corners.append((vertex, uv))
    for second, third in itertools.pairwise(corners[1:]):
        found.corners += [corners[0], second, third]
        found.face_materials.append(found.current)


def _index(text: str, count: int) -> int:
    """An index from 0; OBJ counts from 1, and backwards from the latest with negative numbers."""
    number = int(text)
    index = number - 1 if number > 0 else count + number
    if number == 0 or index < 0:
        raise ValueError(f"index {number} where there are {count}")
    return index


def _take_library(found: _Parsed, path: Path) -> None:
    """Materials of an MTL file; one that is not there leaves the mesh unpainted, as every viewer does."""
    if not path.is_file():
        return
    name = ""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.split()
        if len(words) < 2:
            continue
        known = found.materials.get(name, Material(name=name))
        if words[0] == "newmtl":
            name = line.split(None, 1)[1].strip()
            found.materials[name] = Material(name=name)
        elif words[0] == "Kd" and len(words) >= 4:
            red, green, blue = (float(word) for word in words[1:4])
            found.materials[name] = Material(name=name, colour=(red, green, blue), texture=known.texture)
        elif words[0] == "map_Kd":
            texture = _read_texture(path.parent / _texture_name(line), path)
            found.materials[name] = Material(name=name, colour=known.colour, texture=texture)


def _texture_name(line: str) -> str:
    rest = line.split(None, 1)[1].strip()
    while rest.startswith("-"):
        option, _, rest = rest.partition(" ")
        for _ in range(TEXTURE_OPTIONS.get(option, 1)):
            word, _, after = rest.strip().partition(" ")
            if option in ("-o", "-s", "-t") and not _is_number(word):
                break  # these take one to three numbers
            rest = after
        rest = rest.strip()
    return rest.replace("\\", "/")


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _read_texture(file: Path, library: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise MeshFileError(
            str(library),
            f"texture {file.name!r}: {error.strerror or error}",
            "Put it there, or remove map_Kd",
        ) from error


def _assemble(found: _Parsed, path: Path) -> Mesh:
    rows = np.array([[*row[:3], *row[-3:]] for row in found.vertices], np.float64).reshape(-1, 6)
    coloured = bool(found.vertices) and all(len(row) >= 6 for row in found.vertices)
    corners = np.array(found.corners, np.int64).reshape(-1, 3, 2)
    uvs = None
    if found.uvs and (corners[..., 1] >= 0).any():
        table = np.array([*found.uvs, [np.nan, np.nan]], np.float64)
        index = np.where(corners[..., 1] < 0, len(found.uvs), corners[..., 1])
        highest = int(corners[..., 1].max())
        if highest >= len(found.uvs):  # one too many would stand for none
            raise MeshFileError(str(path), f"a face names texture coordinate {highest + 1} of {len(found.uvs)}")
        uvs = table[index]
    materials = np.array(found.face_materials, np.int64)
    return Mesh(
        vertices=rows[:, :3],
        faces=corners[..., 0],
        uvs=uvs,
        colours=rows[:, 3:] if coloured else None,
        materials=tuple(found.materials.values()),
        face_materials=materials if found.materials else None,
    )


def files(path: Path, mesh: Mesh) -> dict[Path, bytes]:
    """The OBJ file and, where there are materials, an MTL file and textures beside it."""
    lines = [f"mtllib {path.stem}.mtl"] if mesh.materials else []
    colours = mesh.colours if mesh.colours is not None else np.empty((len(mesh.vertices), 0))
    lines += ["v " + " ".join(f"{value:.7g}" for value in row) for row in np.hstack([mesh.vertices, colours])]
    uv_of = None
    if mesh.uvs is not None:
        has_uv = np.isfinite(mesh.uvs).all(axis=2)
        unique, inverse = np.unique(mesh.uvs[has_uv], axis=0, return_inverse=True)
        uv_of = np.zeros(has_uv.shape, np.int64)
        uv_of[has_uv] = inverse.reshape(-1) + 1
        lines += [f"vt {u:.7g} {v:.7g}" for u, v in unique]
    lines += _face_lines(mesh, uv_of)
    written = {path: ("\n".join(lines) + "\n").encode()}
    if mesh.materials:
        written |= _library_files(path, mesh.materials)
    return written


def _face_lines(mesh: Mesh, uv_of: np.ndarray | None) -> list[str]:
    lines, current = [], -1
    for number, face in enumerate(mesh.faces + 1):
        material = int(mesh.face_materials[number]) if mesh.face_materials is not None else -1
        if material != current and material >= 0:
            lines.append(f"usemtl {_material_name(mesh.materials, material)}")
            current = material
        if uv_of is None:
            lines.append(f"f {face[0]} {face[1]} {face[2]}")
        else:
            pairs = zip(face, uv_of[number], strict=True)
            lines.append("f " + " ".join(f"{vertex}/{uv}" if uv else f"{vertex}" for vertex, uv in pairs))
    return lines


def _material_name(materials: tuple[Material, ...], number: int) -> str:
    return materials[number].name or f"material_{number}"


def _library_files(path: Path, materials: tuple[Material, ...]) -> dict[Path, bytes]:
    lines: list[str] = []
    textures: dict[Path, bytes] = {}
    for number, material in enumerate(materials):
        lines += [f"newmtl {_material_name(materials, number)}", "Kd " + " ".join(f"{v:.6g}" for v in material.colour)]
        if material.texture is not None:
            suffix = ".png" if material.texture.startswith(b"\x89PNG") else ".jpg"
            file = path.with_name(f"{path.stem}_{number}{suffix}")
            textures[file] = material.texture
            lines.append(f"map_Kd {file.name}")
    return {path.with_suffix(".mtl"): ("\n".join(lines) + "\n").encode(), **textures}
