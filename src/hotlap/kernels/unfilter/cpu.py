"""Rows of PNG on the CPU, compiled by numba."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np


def why_not() -> str:
    """Why this implementation cannot run here; '' if it can."""
    return "" if find_spec("numba") is not None else "numba is not installed"


def unfilter(lines: np.ndarray, step: int) -> np.ndarray:
    """As ``unfilter_ref``."""
    from hotlap.kernels.unfilter.cpu_kernels import unfilter_kernel

    made = np.empty((len(lines), lines.shape[1] - 1), np.uint8)
    unfilter_kernel(np.ascontiguousarray(lines), step, made)
    return made.reshape(len(lines), -1, step)
