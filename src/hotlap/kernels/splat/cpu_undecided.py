"""The pixels and splats about which rounding may decide, in scenes too large for ``cases.undecided``; by Numba.

The margins are not the same everywhere, as in a large scene the error of float32 is not. It grows with the parts that
the exponent is the difference of, as for a needle far from its centre; with the distance of the centre from the
picture's corner, from where centres are counted; and, for a depth, with the distance from the world's origin.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hotlap.kernels.splat import cpu
from hotlap.kernels.splat.cpu_blend import box_of
from hotlap.kernels.splat.cpu_project import DEPTH, OPACITY, XX, XY, YY, X, Y, compiled
from hotlap.kernels.splat.frame import MAX_ALPHA, MIN_ALPHA, MIN_TRANSMITTANCE, Splats, View

STEPS = 8 * 2.0**-24
"""The relative error of a float32 that several roundings have made."""
SUM = 4 * 2.0**-24
"""The most that four roundings, those of a depth, make of the sum of its parts' sizes."""
LEAST = 2e-4
"""The least margin, as a fraction of a threshold; that of the cases."""
MORE = 1.01
"""Opacities are raised to so much for the lists, so that no splat just below the least alpha is missing in a tile."""
MAX_LOST = 1e-4
"""The error of an exponent by cancelling digits with which a splat's gradients are still to be compared."""
MAX_SWAP = 1e-4
"""What two splats may change a colour by, as a part of the light, if they change places."""


@dataclass(frozen=True, kw_only=True)
class Undecided:
    """What a comparison of float32 with float64 can say nothing about."""

    pixels: Tensor
    """[C, H, W] where float32 may decide otherwise whether a splat counts, or which of two unlike ones is in front."""
    splats: Tensor
    """[N] those that may change places with one about as deep, or whose exponent has lost its digits in some pixel."""


def find_undecided(splats: Splats, view: View) -> Undecided:
    """For splats whose opacities are as they are drawn: neither logits nor lowered."""
    assert not view.raw and not view.antialiased, "opacities are raised as they are"
    wide = {name: None if t is None else t.detach().cpu().double() for name, t in vars(splats).items()}
    given = Splats(**wide)  # type: ignore[arg-type]
    saved: cpu.Saved = cpu.forward(replace(given, opacities=given.opacities * MORE), view).saved
    pixels = np.zeros((len(given.viewmats), view.height, view.width), np.bool_)
    rows = np.zeros(len(saved.screen), np.bool_)
    lists = (saved.begins, saved.listed, saved.owners, saved.screen, saved.shades, _depth_errors(given))
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        cpu.share(pool, splat_undecided_kernel, len(saved.begins) - 1, *lists, pixels, rows)
    by_camera = torch.from_numpy(rows).view(len(given.viewmats), -1)
    return Undecided(pixels=torch.from_numpy(pixels), splats=by_camera.any(0))


def _depth_errors(splats: Splats) -> np.ndarray:  # [C * N]
    """How far a depth in float32 may be off: by the size of the numbers whose sum it is."""
    rows = splats.viewmats[:, 2]
    return ((rows[:, :3].abs() @ splats.means.abs().T + rows[:, 3:].abs()) * SUM).flatten().numpy()


@compiled
def exponent_at(row, dx, dy):
    """The exponent; how far it may be off in float32 as a sum, and how far with the error of the centre."""
    xx, yy, xy = 0.5 * row[XX] * dx * dx, 0.5 * row[YY] * dy * dy, row[XY] * dx * dy
    by_x, by_y = abs(row[XX] * dx + row[XY] * dy), abs(row[YY] * dy + row[XY] * dx)
    parts = xx + yy + abs(xy)
    error = parts + by_x * (abs(row[X]) + abs(dx)) + by_y * (abs(row[Y]) + abs(dy))
    return xx + yy + xy, STEPS * parts, STEPS * error


@compiled
def splat_undecided_kernel(first, last, begins, listed, owners, screen, shades, depth_errors, pixels, rows):
    """Writes which pixels of the tiles from ``first`` to ``last``, and which splats in them, are undecided."""
    height, width = pixels.shape[1:]
    for tile in range(first, last):
        c, left, right, top, bottom = box_of(tile, width, height)
        mine = listed[begins[tile] : begins[tile + 1]]
        for y in range(top, bottom):
            for x in range(left, right):
                pixels[c, y, x] = is_undecided(x + 0.5, y + 0.5, mine, owners, screen, shades, depth_errors, rows)


@compiled
def is_undecided(x, y, listed, owners, screen, shades, depth_errors, rows):
    """Whether one pixel is, given its tile's pairs from front to back; undecided splats are marked in ``rows``."""
    light, light_error, before, alpha_before = 1.0, LEAST, -1, 0.0
    found = False
    for pair in listed:
        g = owners[pair]
        row = screen[g]
        sigma, lost, error = exponent_at(row, row[X] - x, row[Y] - y)
        opacity, margin = row[OPACITY] / MORE, LEAST + error
        short = sigma - math.log(opacity / MIN_ALPHA)
        if short > margin:
            continue
        whole = opacity * math.exp(-sigma)
        alpha = min(whole, MAX_ALPHA)
        if lost > MAX_LOST:
            rows[g] = True
        # Below 0 by rounding alone an exponent is left out by some.
        found |= short > -margin or abs(math.log(whole / MAX_ALPHA)) < margin or sigma < lost > LEAST
        if before >= 0 and 0 < row[DEPTH] - screen[before, DEPTH] < depth_errors[g] + depth_errors[before]:
            rows[g] = rows[before] = True
            found |= alpha_before * alpha * light / (1 - alpha_before) * unlike(shades[before], shades[g]) > MAX_SWAP
        light_error += alpha / (1 - alpha) * (STEPS + (0.0 if whole > MAX_ALPHA else error))
        left = light * (1 - alpha)
        found |= abs(left / MIN_TRANSMITTANCE - 1) < light_error
        if left <= MIN_TRANSMITTANCE:
            break
        light, before, alpha_before = left, g, alpha
    return found


@compiled
def unlike(one, other):
    """The most that a channel of two colours differs by."""
    most = 0.0
    for channel in range(len(one)):
        most = max(most, abs(one[channel] - other[channel]))
    return most
