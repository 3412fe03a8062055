"""Nearest points, compiled by numba for the CPU; shares of the queries may run side by side."""

from __future__ import annotations

import numpy as np
from numba import njit

from hotlap.kernels.compiled import fast, inner

FAST = fast("contract", "nsz", "nnan", "reassoc")
INNER = inner(FAST)
CHUNK = 256


@njit(**INNER)
def _least(queries, targets, first, end):
    """The least squared distance from one point [3] to the targets [3, M] from ``first`` to ``end``."""
    x, y, z = queries[0], queries[1], queries[2]
    tx, ty, tz = targets[0], targets[1], targets[2]
    least = np.float32(np.inf)
    for m in range(first, end):
        dx, dy, dz = tx[m] - x, ty[m] - y, tz[m] - z
        distance = dx * dx + dy * dy + dz * dz
        least = min(least, distance)
    return least


@njit(**INNER)
def _which(query, targets, first, end):
    """The first of these targets that is nearest, and how far it is."""
    best, where = np.float32(np.inf), -1
    for m in range(first, end):
        dx, dy, dz = targets[0, m] - query[0], targets[1, m] - query[1], targets[2, m] - query[2]
        distance = dx * dx + dy * dy + dz * dz
        if distance < best:
            best, where = distance, m
    return best, where


@njit(**FAST)
def nearest_kernel(begin, end, queries, targets, lengths, num_targets, distances, indices):
    """Queries ``begin`` to ``end`` of all clouds [B, N, 3] against targets [B, 3, M]; ``lengths`` are the queries'."""
    count = queries.shape[1]
    for number in range(begin, end):
        cloud, n = number // count, number % count
        distances[cloud, n], indices[cloud, n] = 0, -1
        if n >= lengths[cloud]:
            continue
        best, chunk = np.float32(np.inf), -1
        for first in range(0, num_targets[cloud], CHUNK):
            least = _least(queries[cloud, n], targets[cloud], first, min(first + CHUNK, num_targets[cloud]))
            if least < best:
                best, chunk = least, first
        distances[cloud, n] = best
        if chunk >= 0:
            last = min(chunk + CHUNK, num_targets[cloud])
            distances[cloud, n], indices[cloud, n] = _which(queries[cloud, n], targets[cloud], chunk, last)
