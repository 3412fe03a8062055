"""The rows that every implementation of taking filters out is judged by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class UnfilterCase:
    """A picture, and the filters that its rows use in turn."""

    height: int
    width: int
    step: int
    """Bytes of a pixel."""
    kinds: tuple[int, ...]

    @property
    def id(self) -> str:
        return f"{self.height}x{self.width}x{self.step}-{''.join(map(str, self.kinds))}"

    def make(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows as they are stored, and the picture, by the format's description."""
        made = np.random.default_rng(0).integers(256, size=(self.height, self.width, self.step), dtype=np.uint8)
        return filtered(made, self.kinds), made


def filtered(made: np.ndarray, kinds: tuple[int, ...]) -> np.ndarray:  # [H, W, step] -> [H, 1 + W * step]
    """A picture's rows, stored with these filters in turn."""
    height, _, step = made.shape
    rows = made.reshape(height, -1).astype(int)
    lines = np.empty((height, 1 + rows.shape[1]), np.uint8)
    for n, row in enumerate(rows):
        above = rows[n - 1] if n else np.zeros_like(row)
        left, corner = np.roll(row, step), np.roll(above, step)
        left[:step] = corner[:step] = 0
        p = left + above - corner
        nearest = np.stack([abs(p - left), abs(p - above), abs(p - corner)]).argmin(0)
        guesses = [0 * row, left, above, (left + above) // 2, np.choose(nearest, [left, above, corner])]
        kind = kinds[n % len(kinds)]
        lines[n, 0], lines[n, 1:] = kind, (row - guesses[kind]) % 256
    return lines


SIZES = ((1, 1), (1, 12), (12, 1), (2, 2), (7, 20), (20, 7))
CASES = tuple(
    UnfilterCase(height=height, width=width, step=step, kinds=kinds)
    for height, width in SIZES
    for step in (1, 3, 4, 6, 8)
    for kinds in ((0,), (1, 2), (4,), (3, 4), (0, 1, 2, 3, 4))
)
"""One pixel, one row, one column, wide and high; grey to RGBA of 16 bits; each filter alone, and all in turn."""
