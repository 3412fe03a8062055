"""Object metrics: against scikit-image where it measures the same thing, against geometry where it does not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hotlap.base.errors import ConfigError, ShapeError
from hotlap.kernels.instances.cases import blobs, nested
from hotlap.segment.objects import COLUMNS, measure_objects

pytest.importorskip("numba")


def ellipse(a, b, angle=0.0, size=140):
    y, x = np.mgrid[:size, :size] - size / 2 + 0.25
    u, v = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
    return ((u / a) ** 2 + (v / b) ** 2 <= 1).astype(np.int32)


@pytest.mark.parametrize("labels", [blobs(97, 64, 30), nested(), ellipse(40, 15, 0.7)], ids=["blobs", "nested", "one"])
def test_metrics_are_those_of_scikit_image(labels):
    measure = pytest.importorskip("skimage.measure")
    values = np.random.default_rng(0).random(labels.shape).astype(np.float32)
    got = measure_objects(labels, values)
    want = measure.regionprops(labels, values)
    assert [m.label for m in got] == [r.label for r in want]
    for mine, theirs in zip(got, want, strict=True):
        top, left, bottom, right = theirs.bbox
        assert (mine.left_px, mine.top_px) == (left, top)
        assert (mine.width_px, mine.height_px) == (right - left, bottom - top)
        assert (mine.x_px - 0.5, mine.y_px - 0.5) == pytest.approx(theirs.centroid[::-1])
        assert mine.area == theirs.area
        assert mine.extent == pytest.approx(theirs.extent)
        assert mine.equivalent_diameter == pytest.approx(theirs.equivalent_diameter_area)
        # Pixels are points to scikit-image and squares to us, whose second moment is 1/12.
        assert mine.major_axis**2 - 16 / 12 == pytest.approx(theirs.axis_major_length**2, abs=1e-6)
        assert mine.minor_axis**2 - 16 / 12 == pytest.approx(theirs.axis_minor_length**2, abs=1e-6)
        assert mine.perimeter_with_holes == pytest.approx(measure.perimeter_crofton(theirs.image, 4))
        assert mine.confidence == pytest.approx(theirs.intensity_mean, rel=1e-5)
        # Its hull goes through the middles of the pixels' sides, ours through their corners.
        assert mine.feret_max == pytest.approx(theirs.feret_diameter_max, abs=math.sqrt(2))
        if mine.area > 60:
            assert mine.solidity == pytest.approx(theirs.solidity, abs=0.06)


@pytest.mark.parametrize("radius", [6, 15, 40])
def test_a_disc_measures_as_a_circle(radius):
    (m,) = measure_objects(ellipse(radius, radius))
    assert m.perimeter == pytest.approx(2 * math.pi * radius, rel=0.02)
    assert m.circularity == pytest.approx(1, abs=0.05) and m.compactness == pytest.approx(1, abs=0.05)
    # A pixel whose centre is just inside has a corner up to sqrt(1/2) outside, at either end.
    assert 2 * radius - 1 < m.feret_min <= m.feret_max < 2 * radius + math.sqrt(2)
    assert m.convexity > 0.97 and m.solidity > 0.9


def test_an_ellipse_has_true_feret_diameters_at_its_angle():
    (m,) = measure_objects(ellipse(50, 20, angle=0.6))
    assert m.feret_max == pytest.approx(100, abs=1.5) and m.feret_min == pytest.approx(40, abs=1.5)
    assert m.feret_orthogonal == pytest.approx(40, abs=2) and m.feret_aspect_ratio == pytest.approx(2.5, rel=0.05)
    assert m.feret_angle_deg == pytest.approx(math.degrees(0.6), abs=3)
    assert (m.major_axis, m.minor_axis) == pytest.approx((100, 40), rel=0.02)
    assert m.circularity < 0.8 and m.compactness == pytest.approx(1 / m.circularity)


def test_feret_is_the_diagonal_of_a_square_not_its_side():
    labels = np.zeros((30, 30), np.int32)
    labels[5:15, 5:15] = 1
    (m,) = measure_objects(labels)
    assert m.feret_max == pytest.approx(10 * math.sqrt(2)) and m.feret_min == 10 and m.solidity == 1 and m.extent == 1


def test_holes_count_in_one_perimeter_and_not_in_the_other():
    labels = ellipse(40, 40) - ellipse(15, 15)
    solid, ring = measure_objects(ellipse(40, 40))[0], measure_objects(labels)[0]
    hole = measure_objects(ellipse(15, 15))[0]
    assert ring.num_holes == 1 and ring.area == solid.area - hole.area and ring.area_filled == solid.area
    assert ring.perimeter == solid.perimeter
    assert ring.perimeter_with_holes == pytest.approx(solid.perimeter + hole.perimeter)


def test_a_notched_square_is_neither_solid_nor_convex():
    labels = np.zeros((30, 30), np.int32)
    labels[5:25, 5:25] = 1
    labels[5:20, 13:17] = 0
    (m,) = measure_objects(labels)
    assert m.solidity == pytest.approx(340 / 400) and m.convexity < 0.75


def test_one_pixel_has_finite_metrics():
    (m,) = measure_objects(np.ones((1, 1), np.int32), np.full((1, 1), 0.25))
    assert all(math.isfinite(value) for value in m if not isinstance(value, str))
    assert m.circularity == 1 and m.compactness == 1 and m.confidence == 0.25 and m.feret_max == math.sqrt(2)


def test_micrometres_scale_lengths_once_and_areas_twice():
    labels = blobs(60, 60, 8)
    for px, um in zip(measure_objects(labels), measure_objects(labels, um_per_px=0.5), strict=True):
        assert (px.unit, um.unit) == ("px", "um")
        assert um.area == px.area / 4 and um.area_filled == px.area_filled / 4
        for name in ("perimeter", "feret_max", "feret_min", "major_axis", "equivalent_diameter", "feret_orthogonal"):
            assert getattr(um, name) == pytest.approx(getattr(px, name) / 2), name
        for name in ("circularity", "solidity", "x_px", "width_px", "feret_angle_deg"):
            assert getattr(um, name) == getattr(px, name), name


def test_gaps_in_the_numbers_are_no_objects():
    labels = np.zeros((9, 9), np.int32)
    labels[1:3, 1:3], labels[5:8, 5:8] = 3, 7
    got = measure_objects(labels)
    assert [(m.label, m.area, m.feret_min) for m in got] == [(3, 4, 2), (7, 9, 3)]
    assert math.isnan(got[0].confidence) and measure_objects(np.zeros((4, 4), np.int32)) == []
    assert got[0]._fields == COLUMNS


def test_wrong_input_is_named():
    with pytest.raises(ConfigError, match="um_per_px = -1 is not valid"):
        measure_objects(np.ones((2, 2), np.int32), um_per_px=-1)
    with pytest.raises(ShapeError, match=r"probability is \[3, 2\].*\[2, 2\]"):
        measure_objects(np.ones((2, 2), np.int32), np.ones((3, 2)))
