"""A picture with its true objects outlined beside the same with those that were found."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotlap.segment.overlay import edges

TRUE_COLOUR, FOUND_COLOUR = (60, 220, 90), (255, 140, 0)
GAP_PX = 4
LEAST_SIDE = 256

Array = np.ndarray[Any, Any]


def compared(picture: Array, truth: Array, found: Array) -> Array:  # [H, W, 3] uint8, [H, W] each
    """Truth to the left in green, finding to the right in orange; small pictures are enlarged."""
    scale = max(1, round(LEAST_SIDE / min(picture.shape[:2])))
    sides = [
        outlined(_enlarged(picture, scale), _enlarged(labels, scale), colour)
        for labels, colour in ((truth, TRUE_COLOUR), (found, FOUND_COLOUR))
    ]
    gap = np.full((sides[0].shape[0], GAP_PX, 3), 255, np.uint8)
    return np.concatenate([sides[0], gap, sides[1]], 1)


def outlined(picture: Array, labels: Array, colour: tuple[int, int, int]) -> Array:  # -> [H, W, 3] uint8
    """The picture with every object's edge pixels coloured."""
    drawn = picture.copy()
    drawn[edges(labels)] = colour
    return drawn


def _enlarged(pixels: Array, scale: int) -> Array:
    return pixels.repeat(scale, 0).repeat(scale, 1)
