"""Trained splats as arrays, and the files that hold them: which reader and writer a name or a first byte asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hotlap.base.errors import DataError, ShapeError
from hotlap.base.shapes import bind_dims

SH_COEFFS = (0, 3, 8, 15, 24)
"""Coefficients beside the constant one for degree 0 to 4."""
SH_C0 = 0.28209479177387814
"""The constant spherical harmonic: a splat's plain colour is 0.5 + SH_C0 * sh0."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Splats:
    """Gaussian splats as they are trained, all float32; rows that are not finite are allowed, see ``bad``."""

    means: np.ndarray
    """[N, 3] centres in the world, in COLMAP's axes."""
    log_scales: np.ndarray
    """[N, 3] logarithms of the standard deviations."""
    quats: np.ndarray
    """[N, 4] rotations as w, x, y, z, of any length but 0."""
    logit_opacities: np.ndarray
    """[N]"""
    sh0: np.ndarray
    """[N, 3] the constant coefficient of each colour channel."""
    shN: np.ndarray
    """[N, K, 3] the others, K = 0, 3, 8, 15 or 24."""
    antialiased: bool = False
    """Trained to be drawn fainter where they are small, as the mip variant does; PLY and spz files tell it on."""

    def __post_init__(self) -> None:
        for name in FIELDS:
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.dtype != np.float32:
                kind = getattr(array, "dtype", type(array).__name__)
                raise ShapeError(f"{name} is of type {kind}", expected="a NumPy array of float32")
        dims = bind_dims(
            means=(self.means, "N 3"), log_scales=(self.log_scales, "N 3"), quats=(self.quats, "N 4"),
            logit_opacities=(self.logit_opacities, "N"), sh0=(self.sh0, "N 3"), shN=(self.shN, "N K 3"),
        )  # fmt: skip
        if dims["K"] not in SH_COEFFS:
            raise ShapeError(f"shN has {dims['K']} coefficients", expected=f"one of {', '.join(map(str, SH_COEFFS))}")

    def __len__(self) -> int:
        return len(self.means)

    @property
    def sh_degree(self) -> int:
        """Of the spherical harmonics: 0 to 4."""
        return math.isqrt(self.shN.shape[1] + 1) - 1

    def bad(self) -> np.ndarray:  # [N] bool
        """Which splats cannot be drawn: a number that is not finite, or a rotation of length 0."""
        finite = np.ones(len(self), dtype=bool)
        for name in FIELDS:
            array = getattr(self, name)
            finite &= np.isfinite(array).all(axis=tuple(range(1, array.ndim)))
        return ~finite | (np.abs(self.quats).max(1, initial=0.0) == 0)

    def take(self, which: np.ndarray) -> Splats:
        """The splats at some positions, or those that a mask names."""
        return replace(self, **{name: getattr(self, name)[which] for name in FIELDS})

    def with_degree(self, degree: int) -> Splats:
        """The same splats with spherical harmonics up to a degree: cut off, or filled up with zeros."""
        want = (degree + 1) ** 2 - 1
        if want not in SH_COEFFS:
            raise ShapeError(f"degree = {degree} is out of range", expected="0 to 4")
        have = self.shN.shape[1]
        rest = np.zeros((len(self), want, 3), dtype=np.float32)
        rest[:, : min(want, have)] = self.shN[:, :want]
        return replace(self, shN=rest)


FIELDS = ("means", "log_scales", "quats", "logit_opacities", "sh0", "shN")
FORMATS = (".ply", ".compressed.ply", ".splat", ".spz")
"""How names of files end that can be written; read files are recognised by their first bytes as well."""


def read_splats(path: Path | str) -> Splats:
    """The splats of a PLY file, plain or compressed, an spz, a .splat or a SOG file or folder.

    Rows are as the file has them, even those that cannot be drawn: ``splats.take(~splats.bad())`` is without them.
    """
    from hotlap.data.splat_antimatter import read_splat
    from hotlap.data.splat_sog import read_sog
    from hotlap.data.splat_spz import MAGIC, read_spz

    file = Path(path)
    if file.name == "meta.json" or (file / "meta.json").is_file():
        return read_sog(file)
    first = _first_bytes(file)
    if first.startswith(b"ply"):
        return _read_any_ply(file)
    if first.startswith((MAGIC, b"\x1f\x8b")):
        return read_spz(file)
    if first == b"PK\x03\x04":
        return read_sog(file)
    if file.suffix.lower() == ".splat":
        return read_splat(file)
    raise DataError(
        f"file {str(file)!r} holds no splats that are known: it begins with {first!r}",
        expected=f"one of {', '.join(FORMATS)}, .sog",
    )


def write_splats(path: Path | str, splats: Splats) -> None:
    """A file of splats, of the kind that its name ends in: see ``FORMATS``. Its folder is made."""
    from hotlap.data.splat_antimatter import write_splat
    from hotlap.data.splat_packed_ply import write_packed
    from hotlap.data.splat_ply import write_ply
    from hotlap.data.splat_spz import write_spz

    file = Path(path)
    bad = splats.bad()
    if bad.any():
        raise DataError(
            f"splat {int(bad.argmax())} of {len(splats)}, and {int(bad.sum()) - 1} others, have numbers that are "
            "not finite, or a rotation of length 0",
            remedy="Leave them out: splats.take(~splats.bad()), or drop_bad of an export",
        )
    writers = {".ply": write_ply, ".splat": write_splat, ".spz": write_spz}
    if file.name.lower().endswith(".compressed.ply"):
        write_packed(file, splats)
    elif file.suffix.lower() in writers:
        writers[file.suffix.lower()](file, splats)
    else:
        raise DataError(
            f"file {str(file)!r} is of no kind that is written", expected=f"a name that ends in {', '.join(FORMATS)}"
        )


def beyond(path: Path | str, splats: Splats) -> np.ndarray:  # [N] bool
    """Which splats lie farther from the origin than a file of the kind that a name ends in reaches."""
    from hotlap.data.splat_spz import REACH

    if Path(path).suffix.lower() != ".spz":
        return np.zeros(len(splats), dtype=bool)
    return np.asarray(np.abs(splats.means).max(1, initial=0.0) > REACH)


def _first_bytes(path: Path) -> bytes:
    from hotlap.data.file_bytes import unreadable

    try:
        with path.open("rb") as file:
            return file.read(4)
    except OSError as error:
        raise unreadable(path, error) from error


def _read_any_ply(path: Path) -> Splats:
    from hotlap.data.ply import check_end, read_ply
    from hotlap.data.splat_packed_ply import is_packed, splats_of_packed
    from hotlap.data.splat_ply import splats_of

    header, tables = read_ply(path, ["vertex", "chunk", "sh"])
    if "vertex" not in tables:
        raise DataError(f"file {str(path)!r} has no element 'vertex'")
    splats = splats_of_packed(header, tables) if is_packed(header) else splats_of(header, tables["vertex"])
    check_end(header)
    return splats
