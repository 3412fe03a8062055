"""From a network's maps to numbered objects: threshold, touching ones split, small ones dropped."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hotlap.base.errors import ConfigError, ShapeError
from hotlap.kernels.instances.op import depth, grade, merge, regions, renumber, watershed
from hotlap.segment.heads import BOUNDARY, CORE, FOREGROUND, KNOWN_MAPS


@dataclass(frozen=True, kw_only=True)
class SplitConfig:
    """How maps become objects."""

    threshold: float = 0.5
    """Probability from which a pixel belongs to an object."""
    seed_threshold: float = 0.5
    """Height of a core from which it starts an object of its own; lower splits less."""
    merge: float = 0.8
    """Cores that meet are one object where the pass between them reaches this share of the lower one; 1 for never."""
    min_area: int = 10
    """Pixels of the smallest object that is kept."""

    def __post_init__(self) -> None:
        for name in ("threshold", "seed_threshold"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise ConfigError(f"{name} = {value} is not valid", expected="a number between 0 and 1")
        if not self.merge > 0:
            raise ConfigError(f"merge = {self.merge} is not valid", expected="a share above 0")
        if self.min_area < 1:
            raise ConfigError(f"min_area = {self.min_area} is not valid", expected="at least 1 pixel")


DEFAULT = SplitConfig()


def split(
    maps: np.ndarray,  # [M, H, W] float
    names: tuple[str, ...] = (FOREGROUND, CORE),
    config: SplitConfig = DEFAULT,
) -> np.ndarray:  # [H, W] int32
    """Objects numbered from 1 in the order of their first pixels, 0 elsewhere; each is one 4-connected part.

    Maps are probabilities in [0, 1]. ``foreground`` says where objects are. ``core`` rises from an object's edge to its
    middle; ``boundary`` is high where objects end or meet. Without either, the depth inside the foreground splits.
    """
    _check(maps, names)
    foreground = maps[names.index(FOREGROUND)]
    heights = _heights(maps, names, config)
    mask, cores, levels = grade(foreground, heights, config.threshold, config.seed_threshold)
    seeds, num_seeds = regions(cores)
    del cores  # of a scan each of these is gigabytes
    labels = watershed(levels, seeds, mask)
    del levels, seeds
    if config.merge < 1:
        labels = merge(labels, heights, config.merge)
    _add_the_rest(mask, labels, num_seeds)
    return renumber(labels, config.min_area)


def _check(maps: np.ndarray, names: tuple[str, ...]) -> None:
    if maps.ndim != 3 or maps.shape[0] != len(names):
        raise ShapeError(f"maps is {list(maps.shape)}", expected=f"[{len(names)}, H, W] for {', '.join(names)}")
    unknown = [name for name in names if name not in KNOWN_MAPS]
    if unknown or FOREGROUND not in names:
        raise ConfigError(
            f"maps = {', '.join(names)} cannot be split", expected=f"{FOREGROUND!r} and at most {KNOWN_MAPS[1:]}"
        )


def _heights(maps: np.ndarray, names: tuple[str, ...], config: SplitConfig) -> np.ndarray:  # [H, W] in [0, 1]
    """How far inside its object each pixel is thought to be."""
    if CORE in names:
        return maps[names.index(CORE)]
    if BOUNDARY in names:
        return maps[names.index(FOREGROUND)] - maps[names.index(BOUNDARY)]
    return depth(maps[names.index(FOREGROUND)] >= config.threshold)


def _add_the_rest(mask: np.ndarray, labels: np.ndarray, num_seeds: int) -> None:
    """Gives each part of the mask that no seed has reached a label of its own: its core is low, but it is there."""
    rest = mask & (labels == 0)
    if rest.any():
        np.add(regions(rest)[0], np.int32(num_seeds), out=labels, where=rest)
