"""Inputs for the steps from maps to instances: nothing, a pixel, touching corners, nested holes, random cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Case:
    """A label picture; masks, seeds and levels are made from it."""

    id: str
    make: Callable[[], np.ndarray]


def nested() -> np.ndarray:  # [13, 13]
    """A ring, in its hole another ring, in whose hole lies an island."""
    labels = np.zeros((13, 13), np.int32)
    for number, edge in enumerate((0, 2, 5), start=1):
        labels[edge : 13 - edge, edge : 13 - edge] = number
        labels[edge + 1 : 12 - edge, edge + 1 : 12 - edge] = 0
    labels[6, 6] = 4
    return labels


def blobs(height: int, width: int, num: int, seed: int = 0) -> np.ndarray:  # [height, width]
    """Discs that touch and cut into one another, with holes; a label may lie in parts or be covered."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    labels = np.zeros((height, width), np.int32)
    for number in range(1, num + 1):
        at_y, at_x, radius = random.uniform(0, height), random.uniform(0, width), random.uniform(2, 12)
        away = np.hypot(y - at_y, x - at_x)
        labels[away <= radius] = number
        labels[away <= radius * random.choice([0, 0.4])] = 0
    return labels


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Random labels: every shape that pixels can make, corners that touch included."""
    return np.random.default_rng(seed).integers(0, 3, (height, width)).astype(np.int32)


def _turned() -> np.ndarray:
    return blobs(40, 61, 25, seed=3).T[::-1]


CASES = [
    Case("empty", lambda: np.zeros((0, 5), np.int32)),
    Case("background", lambda: np.zeros((4, 5), np.int32)),
    Case("pixel", lambda: np.ones((1, 1), np.int32)),
    Case("row", lambda: np.array([[0, 1, 1, 2, 0, 2]], np.int32)),
    Case("corners", lambda: np.array([[1, 0, 1], [0, 1, 0], [1, 0, 1]], np.int32)),
    Case("nested", nested),
    Case("noise", lambda: noise(17, 23)),
    Case("blobs", lambda: blobs(97, 64, 60)),
    Case("not contiguous", _turned),
]
