"""What the networks learn of an instance label."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

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
