"""A step of Adam, compiled by numba for the CPU; ranges of rows may run side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

FAST: Any = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"contract", "nsz"}}


@njit(**FAST)
def _catch_up(param, first, second, moved, decay1, decay2, eps):
    """Makes the steps that a row has missed."""
    for e in range(param.size):
        if first[e] != 0:
            param[e] -= moved * first[e] / (np.sqrt(second[e]) + eps)
        first[e] *= decay1
        second[e] *= decay2


@njit(**FAST)
def _step(param, grad, first, second, betas, rate, root2, eps):
    b1, b2, rest1, rest2 = betas[0], betas[1], betas[2], betas[3]
    for e in range(param.size):
        m = b1 * first[e] + rest1 * grad[e]
        v = b2 * second[e] + rest2 * grad[e] * grad[e]
        first[e], second[e] = m, v
        param[e] -= rate * m / (np.sqrt(v) / root2 + eps)


@njit(**FAST)
def adam_step_kernel(begin, stop, param, grad, none, first, second, missed, seen, moves, decays, betas, numbers, flush):
    """Rows ``begin`` to ``stop`` of a parameter [N, D].

    ``missed`` [N] is how many steps a row is behind, -1 for one to leave alone; ``moves`` [N] how far they take it, and
    ``decays`` [N, 3] what they do to its means, and the eps of its last step.
    """
    rate, root2, eps = numbers[0], numbers[1], numbers[2]
    for row in range(begin, stop):
        if missed[row] < 0:
            continue
        if missed[row] > 0:
            decay1, decay2, at = decays[row, 0], decays[row, 1], decays[row, 2]
            _catch_up(param[row], first[row], second[row], moves[row], decay1, decay2, at)
        if not flush:
            _step(param[row], grad[row] if seen[row] else none, first[row], second[row], betas, rate, root2, eps)
