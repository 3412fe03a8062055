"""What the networks learn of an instance label."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from hotlap.base.errors import UnknownName
from hotlap.segment.heads import HEADS, head_maps
from hotlap.segment.instances import split
from hotlap.segment.targets import MAPS, label_maps


def test_touching_objects_are_hills_of_their_own():
    labels = np.zeros((12, 30), np.uint16)
    labels[1:10, 2:11] = 700
    labels[1:10, 11:20] = 3
    foreground, core = label_maps(labels)
    assert MAPS == ("foreground", "core")
    assert (foreground == (labels > 0)).all()
    assert ndimage.label(foreground)[1] == 1
    hills, num = ndimage.label(core > 0.5)
    assert num == 2
    assert set(labels[hills == 1]) == {700} and set(labels[hills == 2]) == {3}
    assert core[5, 6] == core[5, 15] == 1.0 and core[5, 10] == pytest.approx(0.2)


def test_small_and_cut_objects_keep_a_top():
    labels = np.zeros((9, 9), np.int32)
    labels[4, 4] = 1
    labels[:3, :2] = 2
    core = label_maps(labels)[1]
    assert core[4, 4] == 1.0
    assert core[0, 0] == 1.0, "the picture's border is no edge"
    assert core[2, 0] < 1.0


@pytest.mark.parametrize("value", [0, 5])
def test_a_picture_of_one_value(value):
    maps = label_maps(np.full((4, 5), value))
    assert (maps == (value > 0)).all() and maps.dtype == np.float32


def touching_discs() -> np.ndarray:
    """Three discs of other sizes that meet."""
    rows, columns = np.mgrid[:60, :90]
    labels = np.zeros((60, 90), np.int32)
    for number, (row, column, radius) in enumerate([(30, 20, 14), (30, 47, 14), (12, 64, 9)], start=1):
        labels[(rows - row) ** 2 + (columns - column) ** 2 <= radius**2] = number
    return labels


@pytest.mark.parametrize("head", HEADS)
def test_the_objects_come_back_from_the_maps_of_every_head(head):
    labels = touching_discs()
    found = split(label_maps(labels, HEADS[head]), HEADS[head])
    assert found.max() == 3
    for number in (1, 2, 3):
        mine, there = labels == number, found == np.bincount(found[labels == number]).argmax()
        assert (mine & there).sum() / (mine | there).sum() > 0.9


def test_a_boundary_leaves_something_of_small_objects():
    labels = np.zeros((30, 30), np.int32)
    labels[5:10, 5:10], labels[12:28, 12:28] = 1, 2
    foreground, boundary = label_maps(labels, HEADS["boundary"])
    inside = foreground - boundary
    assert inside[5:10, 5:10].sum() == 9 and inside[12:28, 12:28].sum() == 144
    assert not boundary[labels == 0].any()


def test_a_head_that_is_not_known():
    with pytest.raises(UnknownName, match=r"unknown head 'boundry'"):
        head_maps("boundry")
