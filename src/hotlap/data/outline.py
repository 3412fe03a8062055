"""The outline of an object: rings of corners, with holes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Polygon:
    """One connected part of an object; corners in pixels, x to the right, y down, the image's corner at (0, 0)."""

    outer: np.ndarray  # [P, 2] float64
    """Corners around it, clockwise on the screen."""
    holes: tuple[np.ndarray, ...] = ()  # [Q, 2] float64 each
    """Corners around each of its holes, the other way round."""


@dataclass(frozen=True)
class Outline:
    """One object's polygons."""

    label: int
    parts: tuple[Polygon, ...]
    """One for each connected part; objects made by ``split`` have one."""
    inside: int = 0
    """The object in whose hole this one lies; 0 if in none."""


def keyhole(polygon: Polygon) -> np.ndarray:  # [P, 2]
    """One ring with the same inside, for formats without holes: a way there and back joins each hole to the rest."""
    ring = polygon.outer
    for hole in polygon.holes:
        apart = ((ring[:, None] - hole[None]) ** 2).sum(2)
        near, far = np.unravel_index(int(apart.argmin()), apart.shape)
        turned = np.roll(hole, -int(far), axis=0)
        ring = np.concatenate([ring[: near + 1], turned, turned[:1], ring[near:]])
    return ring
