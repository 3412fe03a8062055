"""Splats from the world onto the screens and gradients back again, compiled by Numba.

All arrays are float64. A row of ``screen`` is one splat on one camera's screen,
with the columns below; a row of its gradients has the first six of them, then the channels.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from hotlap.kernels.splat.frame import CLAMP, MIN_ALPHA, TILE

compiled = njit(nogil=True, cache=True, error_model="numpy")
"""For functions that threads run side by side; a division by 0 is infinite, as in torch."""
X, Y, XX, XY, YY, OPACITY, DEPTH, REACH, HALF_WIDTH, HALF_HEIGHT, SCREEN = range(11)
"""Centre, conic, opacity, depth, the exponent at which alpha is ``MIN_ALPHA``, how far that is; then their number."""
POSE = 16
"""Gradients of a camera: rotation row by row, shift, fx, fy, cx, cy."""


class Given(NamedTuple):
    """The inputs in float64; colours always have three dimensions, the first of 1 where all cameras share them."""

    means: np.ndarray
    quats: np.ndarray
    scales: np.ndarray
    opacities: np.ndarray
    colors: np.ndarray
    viewmats: np.ndarray
    Ks: np.ndarray


class Options(NamedTuple):
    """The view's options; ``degree`` is -1 for colours as they are."""

    width: int
    height: int
    near: float
    far: float
    eps2d: float
    radius_clip: float
    antialiased: bool
    degree: int
    raw: bool
    depth: bool


@compiled
def rotate_into(quats, n, rotation):
    """Writes a splat's rotation; the quaternion's length, and its parts at length 1."""
    w, x, y, z = quats[n, 0], quats[n, 1], quats[n, 2], quats[n, 3]
    length = math.sqrt(w * w + x * x + y * y + z * z)
    if not length > 0.0:
        return 0.0, 0.0, 0.0, 0.0, 0.0
    w, x, y, z = w / length, x / length, y / length, z / length
    rotation[0, 0], rotation[0, 1], rotation[0, 2] = 1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)
    rotation[1, 0], rotation[1, 1], rotation[1, 2] = 2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)
    rotation[2, 0], rotation[2, 1], rotation[2, 2] = 2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)
    return length, w, x, y, z


@compiled
def project_into(n, c, given, options, rotation, scales, to_screen, axes, length):
    """Writes a splat's scales, the screen's derivative by the world, and the splat's axes on the screen.

    The camera's x, y and z, and the limited slopes that the projection is linearised at.
    """
    view, fx, fy, cx, cy = given.viewmats[c], given.Ks[c, 0, 0], given.Ks[c, 1, 1], given.Ks[c, 0, 2], given.Ks[c, 1, 2]
    mx, my, mz = given.means[n, 0], given.means[n, 1], given.means[n, 2]
    x = view[0, 0] * mx + view[0, 1] * my + view[0, 2] * mz + view[0, 3]
    y = view[1, 0] * mx + view[1, 1] * my + view[1, 2] * mz + view[1, 3]
    z = view[2, 0] * mx + view[2, 1] * my + view[2, 2] * mz + view[2, 3]
    if not (z >= options.near and z <= options.far and length > 0.0):
        return x, y, math.nan, 0.0, 0.0
    u_lim = min(max(x / z, (-CLAMP * options.width - cx) / fx), ((1 + CLAMP) * options.width - cx) / fx)
    v_lim = min(max(y / z, (-CLAMP * options.height - cy) / fy), ((1 + CLAMP) * options.height - cy) / fy)
    for j in range(3):
        to_screen[0, j] = fx / z * view[0, j] - fx * u_lim / z * view[2, j]
        to_screen[1, j] = fy / z * view[1, j] - fy * v_lim / z * view[2, j]
    for k in range(3):
        scales[k] = math.exp(given.scales[n, k]) if options.raw else given.scales[n, k]
        for row in range(2):
            along = to_screen[row, 0] * rotation[0, k] + to_screen[row, 1] * rotation[1, k]
            axes[row, k] = scales[k] * (along + to_screen[row, 2] * rotation[2, k])
    return x, y, z, u_lim, v_lim


@compiled
def spread_of(axes, eps2d):
    """The covariance on the screen: its three numbers, its determinant, and that without ``eps2d``."""
    xx = axes[0, 0] * axes[0, 0] + axes[0, 1] * axes[0, 1] + axes[0, 2] * axes[0, 2]
    yy = axes[1, 0] * axes[1, 0] + axes[1, 1] * axes[1, 1] + axes[1, 2] * axes[1, 2]
    xy = axes[0, 0] * axes[1, 0] + axes[0, 1] * axes[1, 1] + axes[0, 2] * axes[1, 2]
    p = axes[0, 1] * axes[1, 2] - axes[0, 2] * axes[1, 1]
    q = axes[0, 2] * axes[1, 0] - axes[0, 0] * axes[1, 2]
    r = axes[0, 0] * axes[1, 1] - axes[0, 1] * axes[1, 0]
    thin = p * p + q * q + r * r
    return xx + eps2d, xy, yy + eps2d, thin + eps2d * (xx + yy + eps2d), thin


@compiled
def opacity_of(opacities, n, raw):
    """From 0 to 1."""
    return 1.0 / (1.0 + math.exp(-opacities[n])) if raw else opacities[n]


@compiled
def sh_into(x, y, z, degree, basis):
    """Writes the spherical harmonics; ``sh_basis`` of the reference says which."""
    basis[0] = 0.28209479177387814
    if degree >= 1:
        basis[1], basis[2], basis[3] = -0.4886025119029199 * y, 0.4886025119029199 * z, -0.4886025119029199 * x
    if degree >= 2:
        basis[4], basis[5], basis[7] = (
            1.0925484305920792 * x * y,
            -1.0925484305920792 * y * z,
            -1.0925484305920792 * x * z,
        )
        basis[6] = 0.9461746957575601 * z * z - 0.3153915652525200
        basis[8] = 0.5462742152960396 * (x * x - y * y)
    if degree >= 3:
        basis[9] = 0.5900435899266435 * y * (y * y - 3 * x * x)
        basis[10] = 2.890611442640554 * x * y * z
        basis[11] = 0.4570457994644658 * y * (1 - 5 * z * z)
        basis[12] = 0.3731763325901154 * z * (5 * z * z - 3)
        basis[13] = 0.4570457994644658 * x * (1 - 5 * z * z)
        basis[14] = 1.445305721320277 * z * (x * x - y * y)
        basis[15] = 0.5900435899266435 * x * (3 * y * y - x * x)


@compiled
def sh_slopes_into(x, y, z, degree, slopes):
    """Writes the derivatives of the spherical harmonics by x, y and z."""
    slopes[:] = 0.0
    if degree >= 1:
        slopes[1, 1], slopes[2, 2], slopes[3, 0] = -0.4886025119029199, 0.4886025119029199, -0.4886025119029199
    if degree >= 2:
        a, b = 1.0925484305920792, 2 * 0.5462742152960396
        slopes[4, 0], slopes[4, 1] = a * y, a * x
        slopes[5, 1], slopes[5, 2] = -a * z, -a * y
        slopes[6, 2] = 2 * 0.9461746957575601 * z
        slopes[7, 0], slopes[7, 2] = -a * z, -a * x
        slopes[8, 0], slopes[8, 1] = b * x, -b * y
    if degree >= 3:
        c, d, e = 3 * 0.5900435899266435, 2.890611442640554, 0.4570457994644658
        slopes[9, 0], slopes[9, 1] = -2 * c * x * y, c * (y * y - x * x)
        slopes[10, 0], slopes[10, 1], slopes[10, 2] = d * y * z, d * x * z, d * x * y
        slopes[11, 1], slopes[11, 2] = e * (1 - 5 * z * z), -10 * e * y * z
        slopes[12, 2] = 0.3731763325901154 * (15 * z * z - 3)
        slopes[13, 0], slopes[13, 2] = e * (1 - 5 * z * z), -10 * e * x * z
        slopes[14, 0], slopes[14, 1], slopes[14, 2] = d * x * z, -d * y * z, 0.5 * d * (x * x - y * y)
        slopes[15, 0], slopes[15, 1] = c * (y * y - x * x), 2 * c * x * y


@compiled
def direction_to(n, c, given):
    """From the camera's centre to a splat's: the unit vector and the distance."""
    view = given.viewmats[c]
    x = given.means[n, 0] + view[0, 0] * view[0, 3] + view[1, 0] * view[1, 3] + view[2, 0] * view[2, 3]
    y = given.means[n, 1] + view[0, 1] * view[0, 3] + view[1, 1] * view[1, 3] + view[2, 1] * view[2, 3]
    z = given.means[n, 2] + view[0, 2] * view[0, 3] + view[1, 2] * view[1, 3] + view[2, 2] * view[2, 3]
    far = math.sqrt(x * x + y * y + z * z)
    return x / far, y / far, z / far, far


@compiled
def shade_into(n, c, given, options, basis, depth, shade):
    """Writes a splat's colours, and its depth where it is a channel; whether all are finite."""
    if options.degree >= 0:
        x, y, z, _ = direction_to(n, c, given)
        sh_into(x, y, z, options.degree, basis)
        for channel in range(3):
            total = 0.5
            for k in range((options.degree + 1) * (options.degree + 1)):
                total += basis[k] * given.colors[n, k, channel]
            shade[channel] = max(total, 0.0) if math.isfinite(total) else math.nan
        count = 3
    else:
        mine = c if given.colors.shape[0] > 1 else 0
        count = given.colors.shape[2]
        for channel in range(count):
            shade[channel] = given.colors[mine, n, channel]
    if options.depth:
        shade[count] = depth
    return np.isfinite(shade).all()


@compiled
def least_exponent(row, left, right, top, bottom):
    """The least exponent of a splat over a box of pixel centres."""
    mx, my = row[X], row[Y]
    if left <= mx <= right and top <= my <= bottom:
        return 0.0
    least = math.inf
    if mx < left or mx > right:
        dx = mx - (left if mx < left else right)
        dy = min(max(-row[XY] * dx / row[YY], my - bottom), my - top)
        least = 0.5 * (row[XX] * dx * dx + row[YY] * dy * dy) + row[XY] * dx * dy
    if my < top or my > bottom:
        dy = my - (top if my < top else bottom)
        dx = min(max(-row[XY] * dy / row[XX], mx - right), mx - left)
        least = min(least, 0.5 * (row[XX] * dx * dx + row[YY] * dy * dy) + row[XY] * dx * dy)
    return least


@compiled
def tiles_of(row, options, first_tile, tiles):
    """How many tiles a splat reaches with ``MIN_ALPHA``; their numbers are written unless ``tiles`` is empty."""
    across, down = (options.width + TILE - 1) // TILE, (options.height + TILE - 1) // TILE
    left = int(max(0.0, (row[X] - row[HALF_WIDTH]) // TILE))
    right = int(min(across - 1.0, (row[X] + row[HALF_WIDTH]) // TILE))
    top = int(max(0.0, (row[Y] - row[HALF_HEIGHT]) // TILE))
    bottom = int(min(down - 1.0, (row[Y] + row[HALF_HEIGHT]) // TILE))
    found = 0
    for ty in range(top, bottom + 1):
        y0, y1 = ty * TILE + 0.5, min((ty + 1) * TILE, options.height) - 0.5
        for tx in range(left, right + 1):
            x0, x1 = tx * TILE + 0.5, min((tx + 1) * TILE, options.width) - 0.5
            # The slack is for rounding: a tile too many costs a little time, one too few would lose a splat.
            if least_exponent(row, x0, x1, y0, y1) <= row[REACH] * (1 + 1e-9) + 1e-9:
                if len(tiles):
                    tiles[found] = first_tile + ty * across + tx
                found += 1
    return found


@compiled
def splat_project_fwd_kernel(first, last, given, options, screen, shades, radii, num_tiles):
    """Writes what is known of the splats from ``first`` to ``last`` on each screen; zeros of those not drawn."""
    num, nothing = len(given.means), np.empty(0, np.int32)
    rotation, scales, basis = np.empty((3, 3)), np.empty(3), np.empty(16)
    to_screen, axes = np.empty((2, 3)), np.empty((2, 3))
    for n in range(first, last):
        length = rotate_into(given.quats, n, rotation)[0]
        for c in range(len(given.viewmats)):
            row, shade = screen[c * num + n], shades[c * num + n]
            x, y, z, _, _ = project_into(n, c, given, options, rotation, scales, to_screen, axes, length)
            xx, xy, yy, det, thin = spread_of(axes, options.eps2d)
            opacity = opacity_of(given.opacities, n, options.raw)
            if options.antialiased:
                opacity *= math.sqrt(thin / det) if det > 0.0 else 0.0
            row[X] = given.Ks[c, 0, 0] * (x / z) + given.Ks[c, 0, 2]
            row[Y] = given.Ks[c, 1, 1] * (y / z) + given.Ks[c, 1, 2]
            row[XX], row[XY], row[YY] = yy / det, -xy / det, xx / det
            row[OPACITY], row[DEPTH] = opacity, z
            seen = math.isfinite(z) and det > 0.0 and math.isfinite(det) and opacity > MIN_ALPHA
            seen = seen and math.isfinite(opacity) and math.isfinite(row[X]) and math.isfinite(row[Y])
            if seen:
                row[REACH] = math.log(opacity / MIN_ALPHA)
                width, height = math.sqrt(2 * row[REACH] * xx), math.sqrt(2 * row[REACH] * yy)
                row[HALF_WIDTH], row[HALF_HEIGHT] = width, height
                rx, ry = np.ceil(width), np.ceil(height)
                seen = rx > options.radius_clip or ry > options.radius_clip
                seen = seen and row[X] + rx > 0 and row[X] - rx < options.width
                seen = seen and row[Y] + ry > 0 and row[Y] - ry < options.height
                seen = seen and shade_into(n, c, given, options, basis, z, shade)
            if seen:
                radii[c * num + n, 0], radii[c * num + n, 1] = min(rx, 2.0**30), min(ry, 2.0**30)
                num_tiles[c * num + n] = tiles_of(row, options, 0, nothing)
            else:
                row[:] = 0.0
                shade[:] = 0.0


@compiled
def splat_pair_kernel(first, last, screen, options, num_cameras, offsets, tiles, owners):
    """Writes the tile and the splat of each pair; those of one splat lie together, from its offset on."""
    across, down = (options.width + TILE - 1) // TILE, (options.height + TILE - 1) // TILE
    for g in range(first, last):
        if offsets[g + 1] > offsets[g]:
            camera = g // (len(screen) // num_cameras)
            tiles_of(screen[g], options, camera * across * down, tiles[offsets[g] : offsets[g + 1]])
            owners[offsets[g] : offsets[g + 1]] = g


@compiled
def splat_list_kernel(order, offsets, tiles, ends, listed):
    """Writes each tile's pairs in the given order of splats; ``ends`` come in as where each tile begins."""
    for g in order:
        for pair in range(offsets[g], offsets[g + 1]):
            listed[ends[tiles[pair]]] = pair
            ends[tiles[pair]] += 1
