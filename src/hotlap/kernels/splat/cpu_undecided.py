"""The pixels in which rounding may decide, in scenes too large for ``cases.undecided``; compiled by Numba.

The margins are not the same everywhere, as in a large scene the error of float32 is not. It grows with the parts that
the exponent is the difference of, as for a needle far from its centre; with the distance of the centre from the
picture's corner, from where centres are counted; and, for a depth, with the distance from the world's origin.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hotlap.kernels.splat import cpu
from hotlap.kernels.splat.cpu_blend import box_of
from hotlap.kernels.splat.cpu_project import DEPTH, OPACITY, XX, XY, YY, X, Y, compiled
from hotlap.kernels.splat.frame import MAX_ALPHA, MIN_ALPHA, MIN_TRANSMITTANCE, Splats, View

STEPS = 8 * 2.0**-24
"""The relative error of a float32 that several roundings have made."""
LEAST = 2e-4
"""The least margin, as a fraction of a threshold; that of the cases."""
MORE = 1.01
"""Opacities are raised to so much for the lists, so that no splat just below the least alpha is missing in a tile."""


def undecided_pixels(splats: Splats, view: View) -> Tensor:  # [C, H, W] bool
    """The pixels in which float32 may decide unlike float64 whether a splat counts, or which one is in front."""
    assert not view.raw and not view.antialiased, "opacities are raised as they are"
    wide = {name: None if t is None else t.detach().cpu().double() for name, t in vars(splats).items()}
    given = Splats(**wide)  # type: ignore[arg-type]
    saved: cpu.Saved = cpu.forward(replace(given, opacities=given.opacities * MORE), view).saved
    found = np.zeros((len(given.viewmats), view.height, view.width), np.bool_)
    lists = (saved.begins, saved.listed, saved.owners, saved.screen, _depth_errors(given))
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        cpu.share(pool, splat_undecided_kernel, len(saved.begins) - 1, *lists, found)
    return torch.from_numpy(found)


def _depth_errors(splats: Splats) -> np.ndarray:  # [C * N]
    """How far a depth in float32 may be off: by the size of the numbers whose sum it is."""
    rows = splats.viewmats[:, 2]
    return ((rows[:, :3].abs() @ splats.means.abs().T + rows[:, 3:].abs()) * STEPS).flatten().numpy()


@compiled
def exponent_at(row, dx, dy):
    """The exponent; how far it may be off in float32 as a sum, and how far with the error of the centre."""
    xx, yy, xy = 0.5 * row[XX] * dx * dx, 0.5 * row[YY] * dy * dy, row[XY] * dx * dy
    by_x, by_y = abs(row[XX] * dx + row[XY] * dy), abs(row[YY] * dy + row[XY] * dx)
    parts = xx + yy + abs(xy)
    error = parts + by_x * (abs(row[X]) + abs(dx)) + by_y * (abs(row[Y]) + abs(dy))
    return xx + yy + xy, STEPS * parts, STEPS * error


@compiled
def splat_undecided_kernel(first, last, begins, listed, owners, screen, depth_errors, found):
    """Writes which pixels of the tiles from ``first`` to ``last`` are undecided."""
    height, width = found.shape[1:]
    for tile in range(first, last):
        c, left, right, top, bottom = box_of(tile, width, height)
        for y in range(top, bottom):
            for x in range(left, right):
                mine = listed[begins[tile] : begins[tile + 1]]
                found[c, y, x] = is_undecided(x + 0.5, y + 0.5, mine, owners, screen, depth_errors)


@compiled
def is_undecided(x, y, listed, owners, screen, depth_errors):
    """Whether one pixel is, given its tile's pairs from front to back."""
    light, light_error, before = 1.0, LEAST, -1
    for pair in listed:
        g = owners[pair]
        row = screen[g]
        sigma, lost, error = exponent_at(row, row[X] - x, row[Y] - y)
        whole, margin = row[OPACITY] / MORE * math.exp(-sigma), LEAST + error
        if whole < MIN_ALPHA * (1 - margin):
            continue
        if whole < MIN_ALPHA * (1 + margin) or abs(whole / MAX_ALPHA - 1) < margin:
            return True
        if sigma < lost and lost > LEAST:  # an exponent below 0 by rounding alone, which some leave out
            return True
        if before >= 0 and 0 < row[DEPTH] - screen[before, DEPTH] < depth_errors[g] + depth_errors[before]:
            return True
        alpha = min(whole, MAX_ALPHA)
        light_error += alpha / (1 - alpha) * (STEPS + (0.0 if whole > MAX_ALPHA else error))
        left = light * (1 - alpha)
        if abs(left / MIN_TRANSMITTANCE - 1) < light_error:
            return True
        if left <= MIN_TRANSMITTANCE:
            return False
        light, before = left, g
    return False
