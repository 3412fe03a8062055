"""Outlines: holes and what lies in them, exact ways back to pixels, simplification."""

from __future__ import annotations

import time

import numpy as np
import pytest
from scipy import ndimage

from hotlap.kernels.instances.cases import blobs, nested, noise
from hotlap.kernels.instances.op import tangled
from hotlap.segment.contours import _loops, draw_outlines, filled, outlines

pytest.importorskip("numba")


def area(ring):
    x, y = ring.T
    return (x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


@pytest.mark.parametrize("labels", [nested(), noise(17, 23), blobs(97, 64, 60), np.zeros((3, 3), np.int32)])
def test_outlines_lead_back_to_the_very_labels(labels):
    np.testing.assert_array_equal(draw_outlines(outlines(labels), labels.shape), labels)


def crumbs(seed):
    """Ragged objects with holes, thin walls and corners that touch."""
    random = np.random.default_rng(seed)
    return ndimage.label(ndimage.gaussian_filter(random.random((90, 110)), 0.8) > 0.47)[0].astype(np.int32)


@pytest.mark.parametrize("tolerance", [0.0, 0.75, 2.0, 6.0])
@pytest.mark.parametrize("seed", range(3))
def test_every_outline_is_a_polygon_that_others_can_compute_with(seed, tolerance):
    """No ring meets itself or another but in a corner, as GIS programs ask; simplified ones crossed now and then."""
    labels = crumbs(seed)
    found = outlines(labels, tolerance=tolerance)
    rings = [(o.label, ring, hole) for o in found for p in o.parts for hole, ring in enumerate((p.outer, *p.holes))]
    assert sum(hole > 0 for _, _, hole in rings) > 10 and all(len(o.parts) == 1 for o in found)
    for _, ring, hole in rings:
        assert len({tuple(corner) for corner in ring.tolist()}) == len(ring), "a corner is come by once"
        assert (area(ring) < 0) == (hole > 0)
        alone = ring.astype(np.int64), np.array([0, len(ring)]), np.array([1], np.int32)
        assert not len(tangled(alone, np.array([area(ring) < 0])))
    if tolerance == 0:
        np.testing.assert_array_equal(draw_outlines(found, labels.shape), labels)


def test_what_is_closed_by_a_corner_alone_is_a_hole_of_the_outline():
    labels = np.array([[1, 1, 1, 1], [1, 0, 0, 1], [1, 0, 1, 1], [1, 1, 0, 0]], np.int32)
    (found,) = outlines(labels)
    (part,) = found.parts
    assert area(part.outer) == 14 and [area(hole) for hole in part.holes] == [-3]
    np.testing.assert_array_equal(draw_outlines([found], labels.shape), labels)


def test_a_square_has_four_corners_clockwise():
    labels = np.zeros((6, 7), np.int32)
    labels[1:4, 2:5] = 9
    (found,) = outlines(labels)
    assert found.label == 9 and found.inside == 0 and not found.parts[0].holes
    assert sorted(map(tuple, found.parts[0].outer)) == [(2, 1), (2, 4), (5, 1), (5, 4)]
    assert area(found.parts[0].outer) == 9


def test_islands_in_holes_know_whose_hole_it_is():
    found = outlines(nested())
    assert [(o.label, o.inside, len(o.parts[0].holes)) for o in found] == [(1, 0, 1), (2, 1, 1), (3, 2, 1), (4, 3, 0)]
    ring = found[0].parts[0]
    assert area(ring.outer) == 169 and area(ring.holes[0]) == -121


def test_an_island_of_the_same_label_is_a_part_of_its_own():
    labels = np.zeros((20, 9), np.int32)
    labels[1:8, 1:8] = 1
    labels[2:7, 2:7] = 0
    labels[3:6, 3:6] = 1
    labels[4, 4] = 0
    labels[12:15, 3:6] = 1
    (found,) = outlines(labels)
    sizes = sorted((area(p.outer), [area(h) for h in p.holes]) for p in found.parts)
    assert sizes == [(9, []), (9, [-1]), (49, [-25])]
    np.testing.assert_array_equal(draw_outlines([found], labels.shape)[12:], labels[12:])


def test_simplified_outlines_stay_near_and_need_fewer_corners():
    y, x = np.mgrid[:80, :80]
    labels = (np.hypot(y - 40, x - 40) < 30).astype(np.int32)
    exact, near = outlines(labels)[0].parts[0].outer, outlines(labels, tolerance=0.8)[0].parts[0].outer
    assert len(near) < len(exact) / 2
    assert abs(area(near) / area(exact) - 1) < 0.02
    drawn = draw_outlines(outlines(labels, tolerance=0.8), labels.shape)
    changed = drawn != labels
    assert changed.mean() < 0.02
    away = np.abs(np.hypot(y - 40, x - 40) - 30)
    assert away[changed].max(initial=0) < 2


def test_a_pixel_survives_any_tolerance():
    (found,) = outlines(np.ones((1, 1), np.int32), tolerance=50)
    assert area(found.parts[0].outer) == 1


def test_filling_takes_the_pixels_whose_centres_are_inside():
    triangle = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    assert filled(triangle, (4, 5)).sum(1).tolist() == [3, 2, 1, 0]
    assert filled(triangle, (2, 2), corner=(1, 1)).tolist() == [[True, False], [False, False]]
    assert filled(triangle[::-1], (4, 5)).sum() == 6, "the direction does not matter"


def test_a_long_ring_that_touches_itself_is_untied_in_one_go():
    """A picture that is all foreground, and ragged, has one ring of as many corners as it has pixels."""
    num = 60_000
    there = np.stack([np.arange(num), np.zeros(num, np.int64)], 1)
    ring = np.concatenate([there, [[5, 1], [5, 0], [4, 1]]])  # by (5, 0) for the second time
    began = time.process_time()
    first, second = _loops(ring)
    assert time.process_time() - began < 5, "once through, not once for each corner"
    np.testing.assert_array_equal(first, np.concatenate([there[5:], [[5, 1]]]))
    np.testing.assert_array_equal(second, np.concatenate([there[:5], [[5, 0], [4, 1]]]))
