"""What can be had without learning: a picture's own threshold, and the shapes it gives split where they are thin."""

from __future__ import annotations

from typing import Any

import numpy as np

LEVELS = 256


def otsu_threshold(grey: np.ndarray[Any, Any]) -> float:
    """The level of [0, 1] that splits the values into the two groups that differ most, as Otsu has it."""
    counts, edges = np.histogram(grey, LEVELS, (0.0, 1.0))
    centres = (edges[:-1] + edges[1:]) / 2
    below = np.cumsum(counts)
    above = below[-1] - below
    sums = np.cumsum(counts * centres)
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = sums / below - (sums[-1] - sums) / above
    between = np.where((below > 0) & (above > 0), below * above * apart**2, -1.0)
    return float(edges[int(between.argmax()) + 1])


def otsu_foreground(picture: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:  # [H, W, 3] uint8 -> [1, H, W]
    """1 where the rarer side of Otsu's threshold is, smoothed before: cells on a dark ground, or on a bright one."""
    from scipy import ndimage

    grey = ndimage.gaussian_filter(picture.mean(-1) / 255, 1.0)
    bright = grey > otsu_threshold(grey)
    cells = bright if bright.mean() <= 0.5 else ~bright
    return cells[None].astype(np.float32)
