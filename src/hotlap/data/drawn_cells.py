"""Seeded pictures of cells with a number for each: bright or dark blobs, many of them touching, over an uneven ground.

Picture ``i`` depends on the seed and on ``i`` alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hotlap.base.errors import ConfigError

MIN_SIZE = 16
RADIUS_PX = (7.0, 20.0)
"""The longer half-axis of a cell, unless the picture is too small for it."""
COVERED = 0.2
"""About this share of a picture is cells."""
MAX_CELLS = 200

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Numbered = np.ndarray[Any, np.dtype[np.int32]]


def draw_cells(index: int, *, size: int, seed: int) -> tuple[Pixels, Numbered]:  # [size, size, 3], [size, size]
    """One picture, and which cell each of its pixels belongs to: 0 for the ground."""
    if size < MIN_SIZE:
        raise ConfigError(f"size = {size} is too small to draw cells in", expected=f"at least {MIN_SIZE}")
    random = np.random.default_rng([seed, index])
    cells = _place_cells(random, size)
    labels, depth = _paint(cells, size)
    stained = random.random() < 0.2  # dark on bright, as in stained tissue; else fluorescence
    ground, contrast = (0.85, -0.35) if stained else (random.uniform(0.02, 0.15), random.uniform(0.2, 0.7))
    strength = np.concatenate([[0.0], random.uniform(0.5, 1.0, len(cells))])
    shape = np.sqrt(np.clip(depth, 0.0, 1.0))
    grey = ground + contrast * strength[labels] * (0.5 + 0.5 * shape) + _shade(random, size)
    tint = np.array([0.8, 0.6, 1.0]) if stained else np.ones(3)
    noise = random.normal(0.0, random.uniform(0.01, 0.05), (size, size)).astype(np.float32)
    picture = (grey + noise)[..., None] * tint
    return (picture.clip(0.0, 1.0) * 255).astype(np.uint8), labels


def _place_cells(random: np.random.Generator, size: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """[K, 5]: centre x and y, both half-axes, the turn; every other cell is put against the one before it."""
    most = min(RADIUS_PX[1], size / 5)
    least = min(RADIUS_PX[0], most / 2)
    area = math.pi * (0.8 * (least + most) / 2) ** 2
    count = max(2, min(MAX_CELLS, round(COVERED * size * size / area)))
    long = random.uniform(least, most, count)
    short = long * random.uniform(0.6, 1.0, count)
    centre = random.uniform(0.0, size, (count, 2))
    angle = random.uniform(0.0, 2 * math.pi, count)
    second = np.arange(1, count, 2)
    reach = 0.85 * (short[second] + short[second - 1])[:, None]
    centre[second] = centre[second - 1] + reach * np.stack([np.cos(angle[second]), np.sin(angle[second])], 1)
    return np.column_stack([centre.clip(0.0, size), long, short, random.uniform(0.0, math.pi, count)])


def _paint(cells: np.ndarray[Any, Any], size: int) -> tuple[Numbered, np.ndarray[Any, Any]]:
    """Each pixel's cell, where it lies deepest, and how deep: 1 at the centre, 0 on the outline."""
    labels = np.zeros((size, size), np.int32)
    depth = np.zeros((size, size), np.float32)
    for number, (x, y, long, short, turn) in enumerate(cells, start=1):
        rows = slice(max(0, int(y - long)), min(size, int(y + long) + 2))
        columns = slice(max(0, int(x - long)), min(size, int(x + long) + 2))
        down, across = np.ogrid[rows, columns]
        dx, dy = across + 0.5 - x, down + 0.5 - y
        u = (math.cos(turn) * dx + math.sin(turn) * dy) / long
        v = (math.cos(turn) * dy - math.sin(turn) * dx) / short
        here = 1.0 - (u * u + v * v)
        deeper = here > depth[rows, columns]
        labels[rows, columns][deeper] = number
        depth[rows, columns][deeper] = here[deeper]
    return labels, depth


def _shade(random: np.random.Generator, size: int) -> np.ndarray[Any, Any]:
    """A slow change of the light over the picture."""
    side = np.linspace(0.0, 1.0, size, dtype=np.float32)
    along, across = random.uniform(-0.05, 0.05, 2)
    return along * side[:, None] + across * side
