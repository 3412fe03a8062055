"""Gradients from the screens back to splats and cameras, compiled by Numba; arithmetic is float64.

``v_row`` has the gradients of a row of ``screen``: centre, conic and opacity, then those of the channels.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hotlap.kernels.splat.cpu_project import (
    OPACITY,
    XX,
    XY,
    YY,
    X,
    Y,
    compiled,
    direction_to,
    opacity_of,
    project_into,
    rotate_into,
    sh_into,
    sh_slopes_into,
    spread_of,
)
from hotlap.kernels.splat.frame import CLAMP


class Gradients(NamedTuple):
    """What is written, all zeros before; ``pose`` has a row of 16 numbers for each chunk and camera."""

    means: np.ndarray
    quats: np.ndarray
    scales: np.ndarray
    opacities: np.ndarray
    colors: np.ndarray
    pose: np.ndarray


@compiled
def spread_gradients(v_row, axes, options, opacity):
    """The gradients of the covariance's three numbers and of the opacity before it was lowered."""
    xx, xy, yy, det, thin = spread_of(axes, options.eps2d)
    total = (v_row[XX] * yy - v_row[XY] * xy + v_row[YY] * xx) / det
    v_xx, v_yy = (v_row[YY] - total * yy) / det, (v_row[XX] - total * xx) / det
    v_xy = (2 * total * xy - v_row[XY]) / det
    if not options.antialiased:
        return v_xx, v_xy, v_yy, v_row[OPACITY]
    ratio = math.sqrt(thin / det)
    half = 0.5 * v_row[OPACITY] * opacity / (ratio * det)
    v_xx += half * (yy - options.eps2d - ratio * ratio * yy)
    v_yy += half * (xx - options.eps2d - ratio * ratio * xx)
    v_xy += half * 2 * xy * (ratio * ratio - 1)
    return v_xx, v_xy, v_yy, v_row[OPACITY] * ratio


@compiled
def axes_backward(n, c, given, rotation, scales, to_screen, v_axes, raw, grads, v_to_screen, v_rotation):
    """Adds a splat's scales' gradients and those of its rotation, and writes those of the screen's derivative."""
    v_to_screen[:] = 0.0
    for k in range(3):
        v_scale = 0.0
        for j in range(3):
            for row in range(2):
                v_scale += v_axes[row, k] * to_screen[row, j] * rotation[j, k]
                v_to_screen[row, j] += v_axes[row, k] * scales[k] * rotation[j, k]
                v_rotation[j, k] += v_axes[row, k] * scales[k] * to_screen[row, j]
        grads.scales[n, k] += v_scale * scales[k] if raw else v_scale


@compiled
def camera_backward(c, given, options, v_row, v_depth, v_to_screen, x, y, z, u_lim, v_lim, pose):
    """Adds a camera's gradients except those by the splat's place; the gradients of the camera's x, y and z."""
    view, fx, fy, cx, cy = given.viewmats[c], given.Ks[c, 0, 0], given.Ks[c, 1, 1], given.Ks[c, 0, 2], given.Ks[c, 1, 2]
    v_xx, v_xz, v_yy, v_yz = 0.0, 0.0, 0.0, 0.0
    for j in range(3):
        v_xx += v_to_screen[0, j] * view[0, j]
        v_xz += v_to_screen[0, j] * view[2, j]
        v_yy += v_to_screen[1, j] * view[1, j]
        v_yz += v_to_screen[1, j] * view[2, j]
        pose[j] += fx / z * v_to_screen[0, j]
        pose[3 + j] += fy / z * v_to_screen[1, j]
        pose[6 + j] -= (fx * u_lim * v_to_screen[0, j] + fy * v_lim * v_to_screen[1, j]) / z
    u, v = x / z, y / z
    v_u, v_v = fx * v_row[X], fy * v_row[Y]
    v_z = v_depth - (fx * v_xx + fy * v_yy - fx * u_lim * v_xz - fy * v_lim * v_yz) / (z * z)
    pose[12] += v_row[X] * u + v_xx / z
    pose[13] += v_row[Y] * v + v_yy / z
    pose[14] += v_row[X]
    pose[15] += v_row[Y]
    if (-CLAMP * options.width - cx) / fx <= u <= ((1 + CLAMP) * options.width - cx) / fx:
        v_u -= fx / z * v_xz
        pose[12] -= u_lim / z * v_xz
    else:
        pose[14] += v_xz / z
    if (-CLAMP * options.height - cy) / fy <= v <= ((1 + CLAMP) * options.height - cy) / fy:
        v_v -= fy / z * v_yz
        pose[13] -= v_lim / z * v_yz
    else:
        pose[15] += v_yz / z
    return v_u / z, v_v / z, v_z - (v_u * u + v_v * v) / z


@compiled
def place_backward(n, c, given, v_x, v_y, v_z, grads, pose):
    """Adds the gradients of a splat's centre and of the camera's pose by the camera's x, y and z."""
    view = given.viewmats[c]
    for j in range(3):
        grads.means[n, j] += view[0, j] * v_x + view[1, j] * v_y + view[2, j] * v_z
        pose[j] += v_x * given.means[n, j]
        pose[3 + j] += v_y * given.means[n, j]
        pose[6 + j] += v_z * given.means[n, j]
    pose[9] += v_x
    pose[10] += v_y
    pose[11] += v_z


@compiled
def shade_backward(n, c, given, options, v_row, basis, slopes, grads, pose):
    """Adds the gradients of a splat's colours and, through the direction, of its centre and of the camera's pose."""
    if options.degree < 0:
        mine = c if given.colors.shape[0] > 1 else 0
        for channel in range(given.colors.shape[2]):
            grads.colors[mine, n, channel] += v_row[6 + channel]
        return
    x, y, z, far = direction_to(n, c, given)
    sh_into(x, y, z, options.degree, basis)
    sh_slopes_into(x, y, z, options.degree, slopes)
    count = (options.degree + 1) * (options.degree + 1)
    v_x, v_y, v_z = 0.0, 0.0, 0.0
    for channel in range(3):
        total = 0.5
        for k in range(count):
            total += basis[k] * given.colors[n, k, channel]
        if total < 0.0:
            continue
        v_color = v_row[6 + channel]
        for k in range(count):
            grads.colors[n, k, channel] += basis[k] * v_color
            v_x += slopes[k, 0] * given.colors[n, k, channel] * v_color
            v_y += slopes[k, 1] * given.colors[n, k, channel] * v_color
            v_z += slopes[k, 2] * given.colors[n, k, channel] * v_color
    along = x * v_x + y * v_y + z * v_z
    v_x, v_y, v_z = (v_x - along * x) / far, (v_y - along * y) / far, (v_z - along * z) / far
    grads.means[n, 0] += v_x
    grads.means[n, 1] += v_y
    grads.means[n, 2] += v_z
    view = given.viewmats[c]
    for i in range(3):
        pose[9 + i] += view[i, 0] * v_x + view[i, 1] * v_y + view[i, 2] * v_z
        pose[3 * i] += view[i, 3] * v_x
        pose[3 * i + 1] += view[i, 3] * v_y
        pose[3 * i + 2] += view[i, 3] * v_z


@compiled
def quaternion_backward(n, a, length, w, x, y, z, quats):
    """Adds the gradients of a splat's quaternion; ``a`` has those of its rotation."""
    v_w = 2 * (x * (a[2, 1] - a[1, 2]) + y * (a[0, 2] - a[2, 0]) + z * (a[1, 0] - a[0, 1]))
    v_x = 2 * (
        y * (a[0, 1] + a[1, 0]) + z * (a[0, 2] + a[2, 0]) + w * (a[2, 1] - a[1, 2]) - 2 * x * (a[1, 1] + a[2, 2])
    )
    v_y = 2 * (
        x * (a[0, 1] + a[1, 0]) + z * (a[1, 2] + a[2, 1]) + w * (a[0, 2] - a[2, 0]) - 2 * y * (a[0, 0] + a[2, 2])
    )
    v_z = 2 * (
        x * (a[0, 2] + a[2, 0]) + y * (a[1, 2] + a[2, 1]) + w * (a[1, 0] - a[0, 1]) - 2 * z * (a[0, 0] + a[1, 1])
    )
    along = w * v_w + x * v_x + y * v_y + z * v_z
    quats[n, 0] += (v_w - along * w) / length
    quats[n, 1] += (v_x - along * x) / length
    quats[n, 2] += (v_y - along * y) / length
    quats[n, 3] += (v_z - along * z) / length


@compiled
def splat_project_bwd_kernel(first, last, given, options, v_screen, radii, chunk, grads):
    """Adds the gradients of the splats from ``first`` to ``last``, one chunk, and to its rows those of the cameras."""
    num, channels = len(given.means), v_screen.shape[1] - 6
    rotation, scales, basis, slopes = np.empty((3, 3)), np.empty(3), np.empty(16), np.empty((16, 3))
    to_screen, axes, v_to_screen, v_axes = np.empty((2, 3)), np.empty((2, 3)), np.empty((2, 3)), np.empty((2, 3))
    v_rotation = np.empty((3, 3))
    for n in range(first, last):
        length, qw, qx, qy, qz = rotate_into(given.quats, n, rotation)
        v_rotation[:] = 0.0
        seen = False
        for c in range(len(given.viewmats)):
            if radii[c * num + n, 0] == 0:
                continue
            seen = True
            v_row, pose = v_screen[c * num + n], grads.pose[chunk, c]
            x, y, z, u_lim, v_lim = project_into(n, c, given, options, rotation, scales, to_screen, axes, length)
            opacity = opacity_of(given.opacities, n, options.raw)
            v_xx, v_xy, v_yy, v_opacity = spread_gradients(v_row, axes, options, opacity)
            grads.opacities[n] += v_opacity * opacity * (1 - opacity) if options.raw else v_opacity
            for k in range(3):
                v_axes[0, k] = 2 * v_xx * axes[0, k] + v_xy * axes[1, k]
                v_axes[1, k] = 2 * v_yy * axes[1, k] + v_xy * axes[0, k]
            axes_backward(n, c, given, rotation, scales, to_screen, v_axes, options.raw, grads, v_to_screen, v_rotation)
            v_depth = v_row[5 + channels] if options.depth else 0.0
            v_x, v_y, v_z = camera_backward(c, given, options, v_row, v_depth, v_to_screen, x, y, z, u_lim, v_lim, pose)
            place_backward(n, c, given, v_x, v_y, v_z, grads, pose)
            shade_backward(n, c, given, options, v_row, basis, slopes, grads, pose)
        if seen:
            quaternion_backward(n, v_rotation, length, qw, qx, qy, qz, grads.quats)
