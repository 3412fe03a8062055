"""Splats as ``.splat``: 32 bytes each, without view-dependent colour; no header, the largest and most opaque first."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hotlap.base.errors import DataError
from hotlap.data.file_bytes import read_whole, write_whole
from hotlap.data.splat_bytes import logit, sigmoid, to_steps, unit
from hotlap.data.splats import SH_C0, Splats

ROW = np.dtype([("mean", "<f4", 3), ("scale", "<f4", 3), ("color", "u1", 4), ("quat", "u1", 4)])
_LEAST_SCALE = 1e-12
"""In place of 0, which has no logarithm: far below anything that is drawn."""


def read_splat(path: Path) -> Splats:
    """The splats of a file, with degree 0; a rotation of four zeros, which says nothing, becomes none."""
    content = read_whole(path)
    if len(content) % ROW.itemsize:
        raise DataError(
            f"file {str(path)!r} has {len(content)} bytes", expected=f"a multiple of {ROW.itemsize}",
            remedy="Copy or export the file again",
        )  # fmt: skip
    rows = np.frombuffer(content, ROW)
    quats = (rows["quat"].astype(np.float32) - 128) / 128
    quats[(quats == 0).all(1)] = (1, 0, 0, 0)
    with np.errstate(invalid="ignore"):  # NaN stays NaN, and a scale below 0 becomes the least
        log_scales = np.log(np.maximum(rows["scale"].astype(np.float64), _LEAST_SCALE)).astype(np.float32)
    color = rows["color"].astype(np.float32) / 255
    return Splats(
        means=rows["mean"].astype(np.float32), log_scales=log_scales, quats=quats,
        logit_opacities=logit(color[:, 3]), sh0=((color[:, :3] - 0.5) / SH_C0).astype(np.float32),
        shN=np.zeros((len(rows), 0, 3), np.float32),
    )  # fmt: skip


def write_splat(path: Path, splats: Splats) -> None:
    """The splats without their view-dependent colour, in the order in which viewers that stream them want them."""
    with np.errstate(over="ignore"):  # a scale beyond float32 is infinite in the file as well
        scales = np.exp(splats.log_scales.astype(np.float64)).astype(np.float32)
        weight = splats.log_scales.sum(1, dtype=np.float64) + np.log(sigmoid(splats.logit_opacities) + 1e-300)
    rows = np.empty(len(splats), ROW)
    rows["mean"], rows["scale"] = splats.means, scales
    color = 0.5 + SH_C0 * splats.sh0.astype(np.float64)
    rows["color"] = to_steps(np.concatenate([color, sigmoid(splats.logit_opacities)[:, None]], 1), 255)
    rows["quat"] = (np.round(unit(splats.quats) * 128) + 128).clip(0, 255)
    write_whole(path, rows[np.argsort(-weight, kind="stable")].tobytes())
