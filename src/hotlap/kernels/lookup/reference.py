"""Counting and looking up by numpy."""

from __future__ import annotations

import numpy as np


def count_values_ref(samples: np.ndarray) -> np.ndarray:  # uint8 or uint16 -> [256] or [65536]
    """How often each value occurs."""
    return np.bincount(samples.ravel(), minlength=np.iinfo(samples.dtype).max + 1)


def look_up_ref(samples: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Each sample's entry of a table."""
    return np.take(table, samples)
