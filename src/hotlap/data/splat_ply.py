"""Splats as the PLY file that the first implementation wrote and viewers read: float32, 62 columns at degree 3."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hotlap.base.errors import DataError
from hotlap.data.file_bytes import write_whole
from hotlap.data.ply import Header, columns
from hotlap.data.splats import SH_COEFFS, Splats
from hotlap.data.view import first_few

MEANS, NORMALS = ("x", "y", "z"), ("nx", "ny", "nz")
DC, SCALES = ("f_dc_0", "f_dc_1", "f_dc_2"), ("scale_0", "scale_1", "scale_2")
QUATS = ("rot_0", "rot_1", "rot_2", "rot_3")
MIP, MIP_COMMENTS = "SplatRenderMode: mip", ("splatrendermode: mip", "antialiased 1")
"""The comment that says how splats were trained, as Brush writes it, and what it and Postshot write."""
NEEDED = (*MEANS, *DC, "opacity", *SCALES, *QUATS)


def rest_names(num: int) -> tuple[str, ...]:
    """The columns of ``num`` coefficients beside the constant one: all of red, then green, then blue."""
    return tuple(f"f_rest_{position}" for position in range(3 * num))


def count_rest(names: tuple[str, ...], path: Path) -> int:
    """How many coefficients beside the constant one a table has."""
    numbers = sum(name.startswith("f_rest_") for name in names)
    if numbers % 3 or numbers // 3 not in SH_COEFFS or not set(rest_names(numbers // 3)) <= set(names):
        raise DataError(
            f"file {str(path)!r} has {numbers} attributes f_rest_*",
            expected=f"f_rest_0 to f_rest_n with n + 1 one of {', '.join(str(3 * num) for num in SH_COEFFS)}",
        )
    return numbers // 3


def splats_of(header: Header, table: np.ndarray) -> Splats:
    """The splats of a table of vertices; its columns are found by name, and unknown ones are left alone."""
    names = header.names("vertex")
    missing = [name for name in NEEDED if name not in names]
    if missing:
        raise DataError(
            f"file {str(header.path)!r} holds no splats: its vertices have no {first_few(missing)}",
            expected=", ".join(NEEDED),
        )
    num = count_rest(names, header.path)
    rest = columns(table, rest_names(num)).reshape(len(table), 3, num)
    return Splats(
        means=columns(table, MEANS), log_scales=columns(table, SCALES), quats=columns(table, QUATS),
        logit_opacities=columns(table, ("opacity",))[:, 0].copy(), sh0=columns(table, DC),
        shN=np.ascontiguousarray(rest.transpose(0, 2, 1)),
        antialiased=any(comment.strip().lower() in MIP_COMMENTS for comment in header.comments),
    )  # fmt: skip


def write_ply(path: Path, splats: Splats) -> None:
    """The splats without loss, in the order of attributes that strict readers count on; normals are 0."""
    num = splats.shN.shape[1]
    names = (*MEANS, *NORMALS, *DC, *rest_names(num), "opacity", *SCALES, *QUATS)
    lines = ["ply", "format binary_little_endian 1.0", *([f"comment {MIP}"] if splats.antialiased else [])]
    lines += [f"element vertex {len(splats)}", *(f"property float {name}" for name in names), "end_header", ""]
    table = np.concatenate(
        [
            splats.means, np.zeros_like(splats.means), splats.sh0,
            splats.shN.transpose(0, 2, 1).reshape(len(splats), 3 * num), splats.logit_opacities[:, None],
            splats.log_scales, splats.quats,
        ],
        axis=1, dtype="<f4",
    )  # fmt: skip
    write_whole(path, "\n".join(lines).encode("ascii") + table.tobytes())
