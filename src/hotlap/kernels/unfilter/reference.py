"""Rows of PNG back to pixels, byte by byte as the format says it: for tests, and for nothing large."""

from __future__ import annotations

import numpy as np


def unfilter_ref(lines: np.ndarray, step: int) -> np.ndarray:  # [H, 1 + W * step] -> [H, W, step]
    """Each byte is what is stored of it and a guess, from the bytes to the left, above, and left of that one."""
    height, row = len(lines), lines.shape[1] - 1
    made = [[0] * (step + row) for _ in range(1 + height)]  # nothing above the first row and left of it
    for above, here, line in zip(made[:-1], made[1:], lines.tolist(), strict=True):
        for x, stored in enumerate(line[1:], start=step):
            left, up, corner = here[x - step], above[x], above[x - step]
            here[x] = (stored + (0, left, up, (left + up) // 2, _nearest(left, up, corner))[line[0]]) % 256
    return np.array(made, np.uint8)[1:, step:].reshape(height, row // step, step)


def _nearest(left: int, up: int, corner: int) -> int:
    """The one that is nearest to where the three lead, the first of those that are as near."""
    return min((left, up, corner), key=lambda one: abs(left + up - corner - one))
