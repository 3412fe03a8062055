"""The mixing of neighbours, compiled by numba for the CPU; shares of the graphs may run side by side."""

from __future__ import annotations

import numpy as np
from numba import njit

from hotlap.kernels.compiled import fast, inner

FAST = fast("contract", "nsz", "reassoc")
INNER = inner(FAST)


@njit(**INNER)
def _add(total, weight, more):
    for o in range(total.size):
        total[o] += weight * more[o]


@njit(**FAST)
def mix_fwd_kernel(begin, end, y, bias, residual, columns, values, relu, share, out, positive):
    """Vertices ``begin`` to ``end`` of all graphs: y [R, V, 2 O] to out [R, V, O]; empty: not there, not wanted."""
    count, width = y.shape[1], out.shape[2]
    zero = np.float32(0)
    for number in range(begin, end):
        row, vertex = number // count, number % count
        here, own = out[row, vertex], y[row, vertex]
        for o in range(width):
            here[o] = own[o] + bias[o]
        for k in range(columns.shape[1]):
            if values[vertex, k] == 0:
                break
            _add(here, values[vertex, k], y[row, columns[vertex, k], width:])
        if positive.size:
            for o in range(width):
                positive[row, vertex, o] = here[o] > 0
        if relu:
            for o in range(width):
                here[o] = max(here[o], zero)
        if residual.size:
            for o in range(width):
                here[o] = share * (here[o] + residual[row, vertex, o])
        elif share != 1:
            for o in range(width):
                here[o] *= share


@njit(**FAST)
def mix_bwd_kernel(begin, end, v_out, positive, columns, values, share, v_y):
    """Graphs ``begin`` to ``end``: the gradient by the result [R, V, O] to that by y [R, V, 2 O]."""
    count, width = v_out.shape[1], v_out.shape[2]
    for row in range(begin, end):
        for vertex in range(count):
            for o in range(width):
                passes = positive.size == 0 or positive[row, vertex, o]
                v_y[row, vertex, o] = share * v_out[row, vertex, o] if passes else np.float32(0)
                v_y[row, vertex, width + o] = 0
        for vertex in range(count):
            for k in range(columns.shape[1]):
                if values[vertex, k] == 0:
                    break
                _add(v_y[row, vertex, width:], values[vertex, k], v_y[row, columns[vertex, k], :width])
