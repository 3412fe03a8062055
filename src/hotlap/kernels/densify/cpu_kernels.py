"""The bookkeeping of densification, compiled by numba for the CPU; ranges of splats may run side by side."""

from __future__ import annotations

from math import cos, exp, expm1, log, log1p, pi, sin, sqrt
from typing import Any

import numpy as np
from numba import njit

FAST: Any = {"cache": True, "nogil": True, "error_model": "numpy"}
KEPT, CHILD_A = 0, 2


@njit(**FAST)
def accumulate_kernel(begin, stop, v_means2d, radii, grad, count, max_radius, visible, scale_x, scale_y, longer_side):
    """Adds the cameras of one step to the sums of splats ``begin`` to ``stop``."""
    for splat in range(begin, stop):
        total, times, largest = 0.0, 0, 0
        for camera in range(radii.shape[0]):
            rx, ry = radii[camera, splat, 0], radii[camera, splat, 1]
            if rx <= 0 or ry <= 0:
                continue
            x, y = v_means2d[camera, splat, 0] * scale_x, v_means2d[camera, splat, 1] * scale_y
            total += sqrt(x * x + y * y)
            times += 1
            largest = max(largest, rx, ry)
        visible[splat] = times > 0
        grad[splat] += total
        count[splat] += times
        max_radius[splat] = max(max_radius[splat], largest / longer_side)


@njit(**FAST)
def plan_kernel(clone, split, prune, source, kind):
    """Fills a plan and returns how many rows it has."""
    row = 0
    for splat in range(prune.size):
        if prune[splat]:
            continue
        first = CHILD_A if split[splat] else KEPT
        for copy in range(2 if split[splat] or clone[splat] else 1):
            if row < source.size:
                source[row], kind[row] = splat, first + copy
            row += 1
    for rest in range(row, source.size):
        source[rest], kind[rest] = -1, KEPT
    return row


@njit(**FAST)
def relocate_kernel(begin, stop, opacities, scales, ratios, new_opacities, new_scales):
    """New opacities and scales; ``densify.cu`` explains the integral."""
    for splat in range(begin, stop):
        ratio, opacity = float(ratios[splat]), float(opacities[splat])
        part = -expm1(log1p(-opacity) / ratio)
        total = -0.5 * expm1(ratio * log1p(-part))
        for n in range(1, 18):
            total -= expm1(ratio * log1p(-part * exp(-0.0625 * n * n)))
        new_opacities[splat] = part
        shrink = opacity / (0.5 / sqrt(pi) * total) if total > 0 else 1.0
        for axis in range(3):
            new_scales[splat, axis] = shrink * scales[splat, axis]


@njit(**FAST)
def _philox(c0, c1, c2, c3, k0, k1, out):
    """Four parts of one from ten rounds of Philox 4x32; all numbers are below 2^32 in 64 bits."""
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ k0, p1 & low, (p0 >> half) ^ c3 ^ k1, p0 & low
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    nine = np.uint64(9)
    out[0], out[1], out[2], out[3] = float(c0 >> nine), float(c1 >> nine), float(c2 >> nine), float(c3 >> nine)
    for n in range(4):
        out[n] = (out[n] + 0.5) / 8388608.0


@njit(**FAST)
def noise_kernel(begin, stop, means, quats, log_scales, logits, size, step, key):
    """Moves the centres of splats ``begin`` to ``stop``."""
    parts, along = np.empty(4), np.empty(3)
    rotation = np.empty((3, 3))
    for splat in range(begin, stop):
        _philox(np.uint64(splat), np.uint64(0), np.uint64(step), np.uint64(0), key[0], key[1], parts)
        length0, length1 = sqrt(-2 * log(parts[0])), sqrt(-2 * log(parts[2]))
        n0, n1 = length0 * cos(2 * pi * parts[1]), length0 * sin(2 * pi * parts[1])
        n2 = length1 * cos(2 * pi * parts[3])
        w, x, y, z = quats[splat, 0], quats[splat, 1], quats[splat, 2], quats[splat, 3]
        scale = 2.0 / (w * w + x * x + y * y + z * z)
        rotation[0, 0], rotation[0, 1], rotation[0, 2] = (
            1 - scale * (y * y + z * z), scale * (x * y - w * z), scale * (x * z + w * y))  # fmt: skip
        rotation[1, 0], rotation[1, 1], rotation[1, 2] = (
            scale * (x * y + w * z), 1 - scale * (x * x + z * z), scale * (y * z - w * x))  # fmt: skip
        rotation[2, 0], rotation[2, 1], rotation[2, 2] = (
            scale * (x * z - w * y), scale * (y * z + w * x), 1 - scale * (x * x + y * y))  # fmt: skip
        opacity = 1 / (1 + exp(-logits[splat]))
        gate = size / (1 + exp(100 * (opacity - 0.005)))
        for k in range(3):
            projected = rotation[0, k] * n0 + rotation[1, k] * n1 + rotation[2, k] * n2
            along[k] = exp(2 * log_scales[splat, k]) * projected * gate
        for k in range(3):
            means[splat, k] += rotation[k, 0] * along[0] + rotation[k, 1] * along[1] + rotation[k, 2] * along[2]
