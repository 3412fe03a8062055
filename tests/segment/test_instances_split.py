"""Maps become objects: touching ones apart, small ones gone, numbers in order."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from hotlap.base.errors import ConfigError, ShapeError
from hotlap.segment.instances import SplitConfig, split

pytest.importorskip("numba")


def discs(shape, *given):
    """A label picture of discs (y, x, radius), each pixel with the nearest middle."""
    y, x = np.mgrid[: shape[0], : shape[1]]
    away = np.stack([np.hypot(y - at_y, x - at_x) - radius for at_y, at_x, radius in given])
    return np.where(away.min(0) <= 0, away.argmin(0) + 1, 0)


def ideal_maps(labels):
    """Foreground, and the depth in each object as a share of its greatest."""
    core = np.zeros(labels.shape)
    for label in range(1, labels.max() + 1):
        depth = ndimage.distance_transform_edt(labels == label)
        core += depth / depth.max()
    return np.stack([(labels > 0).astype(np.float32), core.astype(np.float32)])


PAIR = ((20, 18, 11), (20, 38, 11))


def same_objects(got, want):
    """Whether two label pictures hold the same objects, whatever their numbers."""
    pairs = np.unique(np.stack([got.ravel(), want.ravel()]), axis=1)
    return pairs.shape[1] == len(np.unique(got)) == len(np.unique(want))


def test_touching_discs_are_apart_and_whole():
    labels = discs((40, 56), *PAIR, (5, 50, 4))
    assert ndimage.label(labels > 0)[1] == 2, "two of them touch"
    assert same_objects(split(ideal_maps(labels)), labels)


def test_boundaries_split_as_cores_do():
    labels = discs((40, 56), *PAIR)
    edges = ndimage.maximum_filter(labels, 3) != ndimage.minimum_filter(labels, 3)
    maps = np.stack([labels > 0, edges]).astype(np.float32)
    got = split(maps, ("foreground", "boundary"))
    assert got.max() == 2 and (got > 0).sum() == (labels > 0).sum()
    assert (got[labels == 1] == got[20, 18]).mean() > 0.95


def test_depth_splits_where_there_is_nothing_else():
    labels = discs((40, 56), *PAIR)
    got = split((labels > 0).astype(np.float32)[None], ("foreground",))
    assert got.max() == 2
    assert (got[labels == 1] == got[20, 18]).mean() > 0.95 and (got[labels == 2] == got[20, 38]).mean() > 0.95


def test_an_object_with_a_low_core_is_not_lost():
    maps = ideal_maps(discs((40, 56), *PAIR, (5, 50, 4)))
    maps[1, :12, 44:] *= 0.3
    assert split(maps).max() == 3


def test_small_ones_are_dropped_and_numbers_have_no_gaps():
    labels = discs((40, 60), (10, 10, 6), (10, 30, 1.5), (30, 30, 7))
    maps = ideal_maps(labels)
    assert np.unique(split(maps, config=SplitConfig(min_area=1))).tolist() == [0, 1, 2, 3]
    got = split(maps, config=SplitConfig(min_area=10))
    assert np.unique(got).tolist() == [0, 1, 2]
    assert got[10, 10] == 1 and got[10, 30] == 0 and got[30, 30] == 2


def test_numbers_follow_the_first_pixels():
    labels = discs((60, 60), (40, 10, 6), (10, 40, 6), (12, 12, 6))
    got = split(ideal_maps(labels))
    _, first = np.unique(got, return_index=True)
    assert (np.diff(first[1:]) > 0).all() and got[10, 40] == 1


def test_a_noisy_core_is_one_object_unless_asked_otherwise():
    labels = discs((60, 60), (30, 30, 16))
    maps = ideal_maps(labels)
    noise = ndimage.gaussian_filter(np.random.default_rng(0).normal(0, 0.5, labels.shape), 1.5)
    maps[1] = np.clip(maps[1] + noise * (labels > 0), 0, 1)
    assert split(maps).max() == 1
    assert split(maps, config=SplitConfig(merge=1)).max() > 1
    touching = ideal_maps(discs((40, 56), *PAIR))
    touching[1] = np.clip(touching[1] + noise[:40, :56] * (touching[0] > 0), 0, 1)
    assert split(touching).max() == 2, "a low pass is no reason to merge"


def test_thresholds_matter():
    labels = discs((40, 56), *PAIR)
    maps = ideal_maps(labels)
    assert split(maps * 0.6, config=SplitConfig(threshold=0.7)).max() == 0
    assert split(maps, config=SplitConfig(seed_threshold=0.05)).max() == 1, "one core reaches through the neck"


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (0, 4)])
def test_tiny_maps_work(shape):
    got = split(np.ones((2, *shape), np.float32), config=SplitConfig(min_area=1))
    assert got.shape == shape and (got == 1).all()


def test_wrong_maps_are_named():
    with pytest.raises(ShapeError, match=r"maps is \[3, 4, 4\].*\[2, H, W\] for foreground, core"):
        split(np.zeros((3, 4, 4)))
    with pytest.raises(ConfigError, match="maps = foreground, flow cannot be split"):
        split(np.zeros((2, 4, 4)), ("foreground", "flow"))


@pytest.mark.parametrize(
    ("name", "value"), [("threshold", 0.0), ("seed_threshold", 1.5), ("min_area", 0), ("merge", 0)]
)
def test_settings_outside_their_range_are_named(name, value):
    with pytest.raises(ConfigError, match=f"{name} = {value} is not valid"):
        SplitConfig(**{name: value})
