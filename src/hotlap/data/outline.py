"""The outline of an object: rings of corners, with holes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

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


def corner_texts(
    rings: Sequence[np.ndarray],  # [P, 2] each
    across: Callable[[float], str],
    down: Callable[[float], str],
) -> list[list[str]]:
    """What to write for each corner of each ring: what its column is written as, and then its row.

    Both are few in a picture, and are asked for once each; the functions had better remember them for the next one.
    """
    if not rings:
        return []
    corners = np.concatenate(rings)
    texts = (_texts(corners[:, 0], across) + _texts(corners[:, 1], down)).tolist()
    ends = np.cumsum([0, *map(len, rings)]).tolist()
    return [texts[begin:end] for begin, end in itertools.pairwise(ends)]


def _texts(coordinates: np.ndarray, write: Callable[[float], str]) -> Any:  # [P] -> [P] str
    values, place = np.unique(coordinates, return_inverse=True)
    return np.array([write(value) for value in values.tolist()], object)[place]


def keyhole(polygon: Polygon) -> np.ndarray:  # [P, 2]
    """One ring with the same inside, for formats without holes: a way there and back joins each hole to the rest.

    It leads from a hole's leftmost corner to the nearest one further left. That is of a ring which begins further left
    itself, so rings become a tree with the outer one as its root, however many thousands there are.
    """
    if not polygon.holes:
        return polygon.outer
    rings = [polygon.outer, *polygon.holes]
    corners, starts = np.concatenate(rings), np.cumsum([0, *map(len, rings)]).tolist()
    doors = [start + int(hole[:, 0].argmin()) for start, hole in zip(starts[1:], polygon.holes, strict=False)]
    begun_at: dict[int, list[int]] = {}
    for hole, corner in enumerate(_further_left(corners, np.array(doors), starts[1]).tolist()):
        begun_at.setdefault(corner, []).append(hole)
    path: list[int] = []
    under_way: list[Iterator[int]] = [iter(range(starts[1]))]
    while under_way:
        for corner in under_way[-1]:
            path.append(corner)
            if begun_at.get(corner):
                hole = begun_at[corner].pop()
                begin, door, end = starts[hole + 1], doors[hole], starts[hole + 2]
                under_way.append(itertools.chain(range(door, end), range(begin, door), (door, corner)))
                break
        else:
            under_way.pop()
    return corners[path]


def _further_left(corners: np.ndarray, doors: np.ndarray, num_outer: int) -> np.ndarray:  # [P, 2], [h] -> [h]
    """The nearest corner to the left of each door; where there is none, which no true hole has, of the outer ring's."""
    from scipy.spatial import cKDTree

    found = cKDTree(corners[:num_outer]).query(corners[doors])[1]
    every, left_over, num = cKDTree(corners), np.arange(len(doors)), 8
    while len(left_over) and num < 4 * len(corners):
        num_near = min(num, len(corners))
        near = every.query(corners[doors[left_over]], num_near)[1]
        is_left = corners[near, 0] < corners[doors[left_over], 0][:, None]
        has = is_left.any(1)
        found[left_over[has]] = near[has, is_left[has].argmax(1)]
        left_over, num = left_over[~has], 4 * num
    return np.asarray(found)
