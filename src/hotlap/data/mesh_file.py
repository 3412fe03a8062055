"""Triangle meshes as arrays, read from and written to OBJ, PLY and GLB files; what is wrong with one is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hotlap.base.errors import DataError
from hotlap.base.format import format_count
from hotlap.records.run import write_atomic

SUFFIXES = (".obj", ".ply", ".glb")


class MeshFileError(DataError):
    """A mesh file is missing, damaged, empty or of a kind that is not read."""

    def __init__(
        self, path: str, reason: str, remedy: str = "Export it again, as OBJ, PLY or GLB with triangles"
    ) -> None:
        self.path, self.reason, self.file_remedy = path, reason, remedy
        super().__init__(f"mesh {path!r} cannot be used: {reason}", remedy=remedy)

    def __reduce__(self) -> tuple[type[MeshFileError], tuple[str, str, str]]:
        return type(self), (self.path, self.reason, self.file_remedy)


@dataclass(frozen=True, kw_only=True)
class Material:
    """How faces look: a colour, and a picture that is multiplied with it."""

    name: str = ""
    colour: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Red, green and blue in 0..1."""
    texture: bytes | None = None
    """The content of a PNG or JPEG file."""


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """Triangles with what is painted on them."""

    vertices: np.ndarray  # [V, 3] float64
    faces: np.ndarray  # [F, 3] int64
    uvs: np.ndarray | None = None  # [F, 3, 2] float64, v upwards, NaN where a corner has none
    colours: np.ndarray | None = None  # [V, 3] float64 in 0..1
    materials: tuple[Material, ...] = ()
    face_materials: np.ndarray | None = None  # [F] int64, -1 where a face has none


@dataclass(frozen=True, kw_only=True)
class MeshFaults:
    """What is odd about a mesh that can still be used."""

    num_degenerate: int
    """Faces without an area; they are neither drawn nor sampled."""
    num_open_edges: int
    """Edges of one face only: the surface has a border there."""
    num_crowded_edges: int
    """Edges of three faces or more: not a manifold there, so inside and outside are not told apart."""

    def in_words(self) -> list[str]:
        found = []
        if self.num_degenerate:
            found.append(f"{format_count(self.num_degenerate, 'face')} without an area, left out")
        if self.num_crowded_edges:
            found.append(f"{format_count(self.num_crowded_edges, 'edge')} of more than two faces (not a manifold)")
        return found


def read_mesh(path: Path) -> Mesh:
    """The mesh of a file, checked: finite vertices, indices that exist, and some area."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise MeshFileError(str(path), f"{suffix or 'no suffix'} is not read", f"Give one of {', '.join(SUFFIXES)}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise MeshFileError(str(path), error.strerror or str(error), "Check the path") from error
    if not content:
        raise MeshFileError(str(path), "the file is empty")
    mesh = _reader(suffix)(content, path)
    check_mesh(mesh, str(path))
    return mesh


def write_mesh(path: Path, mesh: Mesh) -> list[Path]:
    """Writes a mesh in the format that the suffix names; the files written, textures among them."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise MeshFileError(str(path), f"{suffix or 'no suffix'} is not written", f"Give one of {', '.join(SUFFIXES)}")
    files = _writer(suffix)(path, mesh)
    for file, content in files.items():
        write_atomic(file, content)
    return list(files)


def mesh_bytes(mesh: Mesh, suffix: str) -> bytes:
    """A mesh without materials as the content of one file, in the format that the suffix names."""
    (content,) = _writer(suffix)(Path(f"mesh{suffix}"), mesh).values()
    return content


def _reader(suffix: str) -> Callable[[bytes, Path], Mesh]:
    from hotlap.data import mesh_glb, mesh_obj, mesh_ply

    return {".obj": mesh_obj.parse, ".ply": mesh_ply.parse, ".glb": mesh_glb.parse}[suffix]


def _writer(suffix: str) -> Callable[[Path, Mesh], dict[Path, bytes]]:
    from hotlap.data import mesh_glb, mesh_obj, mesh_ply

    return {".obj": mesh_obj.files, ".ply": mesh_ply.files, ".glb": mesh_glb.files}[suffix]


def check_mesh(mesh: Mesh, where: str) -> None:
    """Raises if nothing can be drawn or sampled: no faces, NaN vertices, indices out of range, no area at all."""
    if len(mesh.vertices) == 0:
        raise MeshFileError(where, "it has no vertices")
    if len(mesh.faces) == 0:
        raise MeshFileError(where, f"it has {len(mesh.vertices)} vertices but no faces", "Reconstruct a surface first")
    bad = ~np.isfinite(mesh.vertices).all(axis=1)
    if bad.any():
        number = int(bad.argmax())
        raise MeshFileError(
            where, f"vertex {number} is {mesh.vertices[number].tolist()} ({int(bad.sum())} such vertices)"
        )
    low, high = int(mesh.faces.min()), int(mesh.faces.max())
    if low < 0 or high >= len(mesh.vertices):
        wrong = low if low < 0 else high
        raise MeshFileError(where, f"a face names vertex {wrong}, but there are {len(mesh.vertices)}")
    if not face_areas(mesh).max() > 0:
        raise MeshFileError(where, f"none of its {len(mesh.faces)} faces has an area")


def face_normals(mesh: Mesh) -> np.ndarray:  # [F, 3]
    """The normal of each face, as long as twice its area."""
    corners = mesh.vertices[mesh.faces]
    return np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])


def face_areas(mesh: Mesh) -> np.ndarray:  # [F]
    """Areas; 0 where the corners do not span a triangle within the precision of the coordinates."""
    areas = np.linalg.norm(face_normals(mesh), axis=1) / 2
    size = float(np.ptp(mesh.vertices, axis=0).max())
    return np.where(areas > 1e-14 * size * size, areas, 0.0)


def find_faults(mesh: Mesh) -> MeshFaults:
    """What is odd about a mesh that passed ``check_mesh``."""
    edges = np.sort(mesh.faces[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2), axis=1)
    counts = np.unique(edges @ np.array([len(mesh.vertices), 1]), return_counts=True)[1]
    return MeshFaults(
        num_degenerate=int((face_areas(mesh) == 0).sum()),
        num_open_edges=int((counts == 1).sum()),
        num_crowded_edges=int((counts > 2).sum()),
    )


def normalised(mesh: Mesh, diagonal: float) -> Mesh:
    """The mesh with the middle of its bounding box at the origin and the box's diagonal made ``diagonal`` long."""
    used = mesh.vertices[np.unique(mesh.faces)]
    low, high = used.min(axis=0), used.max(axis=0)
    vertices = (mesh.vertices - (low + high) / 2) * (diagonal / float(np.linalg.norm(high - low)))
    return Mesh(
        vertices=vertices,
        faces=mesh.faces,
        uvs=mesh.uvs,
        colours=mesh.colours,
        materials=mesh.materials,
        face_materials=mesh.face_materials,
    )
