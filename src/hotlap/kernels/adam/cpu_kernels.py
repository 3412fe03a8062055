"""A step of Adam, compiled by numba for the CPU; ranges of rows may run side by side."""

from __future__ import annotations

import numpy as np
from numba import njit

from hotlap.kernels.compiled import fast, inner

FAST = fast("contract", "nsz")
INNER = inner(FAST)


@njit(**INNER)
def _catch_up(param, first, second, moved, decay1, decay2, eps):
    """Makes the steps that a row has missed."""
    for e in range(param.size):
        if first[e] != 0:
            param[e] -= moved * first[e] / (np.sqrt(second[e]) + eps)
        first[e] *= decay1
        second[e] *= decay2


@njit(**INNER)
def _step(param, grad, first, second, betas, rate, root2, eps):
    b1, b2, rest1, rest2 = betas[0], betas[1], betas[2], betas[3]
    for e in range(param.size):
        m = b1 * first[e] + rest1 * grad[e]
        v = b2 * second[e] + rest2 * grad[e] * grad[e]
        first[e], second[e] = m, v
        param[e] -= rate * m / (np.sqrt(v) / root2 + eps)


@njit(**FAST)
def adam_step_kernel(
    begin, stop, width, head, param, grad, none, first, second, missed, seen, last, moves, decays, betas, numbers, flush
):
    """Rows ``begin`` to ``stop`` of a parameter, all numbers in one row; a row has ``width`` of them.

    ``missed`` [N] is how many steps a row is behind, -1 for one to leave alone. ``moves`` [256] is how far they take a
    row, by its last step, and ``decays`` [257, 2] what they do to its means. Neighbours with gradients are stepped
    together: short rows alone would keep the processor's wide instructions idle. Columns behind the first ``head`` have
    a share of the rate, and are stepped apart.
    """
    rate, root2, eps, log_beta2, tail = numbers[0], numbers[1], numbers[2], float(numbers[3]), numbers[4]
    row = begin
    while row < stop:
        if missed[row] < 0:
            row += 1
            continue
        end = row
        while end < stop and missed[end] >= 0 and seen[end] == seen[row]:
            if missed[end] > 0:
                a, b = end * width, (end + 1) * width
                d1, d2 = decays[missed[end], 0], decays[missed[end], 1]
                eps_then = eps * np.float32(np.sqrt(-np.expm1(last[end] * log_beta2)))
                move, c = moves[last[end] % moves.size], a + head
                _catch_up(param[a:c], first[a:c], second[a:c], move, d1, d2, eps_then)
                _catch_up(param[c:b], first[c:b], second[c:b], tail * move, d1, d2, eps_then)
            end += 1
            if not seen[row] or head < width:
                break  # there is but one row of zeros
        a, b = row * width, end * width
        c = b if head == width else a + head
        if not flush:
            given = grad[a:b] if seen[row] else none
            _step(param[a:c], given[: c - a], first[a:c], second[a:c], betas, rate, root2, eps)
            _step(param[c:b], given[c - a :], first[c:b], second[c:b], betas, tail * rate, root2, eps)
        row = end
