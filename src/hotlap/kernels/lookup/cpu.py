"""Counting and looking up on the CPU, compiled by numba."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np


def why_not() -> str:
    """Why this implementation cannot run here; '' if it can."""
    return "" if find_spec("numba") is not None else "numba is not installed"


def count_values(samples: np.ndarray) -> np.ndarray:
    """As ``count_values_ref``."""
    from hotlap.kernels.lookup.cpu_kernels import count_kernel

    counts = np.zeros(np.iinfo(samples.dtype).max + 1, np.int64)
    count_kernel(np.ascontiguousarray(samples).reshape(-1), counts)
    return counts


def look_up(samples: np.ndarray, table: np.ndarray) -> np.ndarray:
    """As ``look_up_ref``."""
    from hotlap.kernels.lookup.cpu_kernels import look_up_kernel

    found = np.empty(samples.shape, table.dtype)
    look_up_kernel(np.ascontiguousarray(samples).reshape(-1), table, found.reshape(-1))
    return found
