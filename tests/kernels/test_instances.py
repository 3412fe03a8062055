"""Regions, depth, watershed, rings, holes, hulls, sums: the compiled functions against the plain ones, and facts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import ndimage

from hotlap.base.errors import ConfigError, KernelUnavailable, ShapeError
from hotlap.kernels.instances import cpu, op
from hotlap.kernels.instances.cases import CASES, blobs, nested

pytest.importorskip("numba")
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
each_impl = pytest.mark.parametrize("impl", op.IMPLS)


def shoelace(points, starts):
    areas = []
    for begin, end in itertools.pairwise(starts):
        x, y = points[begin:end].T
        areas.append(int(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2)
    return np.array(areas)


@each_case
def test_regions_match_the_reference(case):
    mask = case.make() > 0
    got, num = op.regions(mask, impl="cpu")
    want, num_want = op.regions(mask, impl="reference")
    assert num == num_want
    np.testing.assert_array_equal(got, want)


def thick(labels):
    """The same picture with each pixel nine times as large, a mask with depth."""
    return np.kron(labels > 0, np.ones((9, 9), bool))


@each_case
@pytest.mark.parametrize("enlarge", [False, True])
def test_depths_are_those_of_the_reference(case, enlarge):
    mask = thick(case.make()) if enlarge else case.make() > 0
    got, want = op.depth(mask, impl="cpu"), op.depth(mask, impl="reference")
    assert got.dtype == want.dtype == np.float32
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shape", [(3, 200), (200, 3), (90, 120)])
def test_depths_where_whole_rows_and_columns_have_no_background(shape):
    mask = np.ones(shape, bool)
    mask[shape[0] // 2, shape[1] // 3] = False
    np.testing.assert_array_equal(op.depth(mask, impl="cpu"), op.depth(mask, impl="reference"))


@each_impl
def test_each_disc_is_deepest_in_its_middle(impl):
    y, x = np.mgrid[:40, :70]
    mask = (np.hypot(y - 20, x - 18) <= 14) | (np.hypot(y - 20, x - 48) <= 16.5)
    got = op.depth(mask, impl=impl)
    assert got[20, 18] == got[20, 48] == 1.0, "the top of a hill, however high"
    assert got[20, 10] < 0.2 and got[20, 32] < 0.05, "half way down, and where they meet"
    assert not got[~mask].any() and got[mask].all()


@each_impl
def test_a_picture_without_background_is_deepest_in_its_middle(impl):
    got = op.depth(np.ones((21, 31), bool), impl=impl)
    assert got[10, 15] == 1.0 and got[0].max() < 0.1 and got[:, -1].max() < 0.1
    np.testing.assert_array_equal(got, got[::-1, ::-1])


@each_case
def test_grades_match_the_reference(case):
    shape = case.make().shape
    random = np.random.default_rng(3)
    foreground, heights = (random.random(shape, np.float32).round(2) for _ in range(2))
    heights = heights * 1.2 - 0.1
    got = op.grade(foreground, heights, 0.5, 0.7, impl="cpu")
    for mine, theirs in zip(got, op.grade(foreground, heights, 0.5, 0.7, impl="reference"), strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)


@each_case
@pytest.mark.parametrize("min_area", [1, 6])
def test_new_numbers_match_the_reference(case, min_area):
    labels = case.make()
    got = op.renumber(labels, min_area, impl="cpu")
    np.testing.assert_array_equal(got, op.renumber(labels, min_area, impl="reference"))
    sizes = np.bincount(got.ravel(), minlength=1)[1:]
    assert (sizes >= min_area).all()


@each_case
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_merged_labels_match_the_reference(case, share):
    labels = case.make()
    heights = np.random.default_rng(4).random(labels.shape, np.float32)
    got = op.merge(labels, heights, share, impl="cpu")
    np.testing.assert_array_equal(got, op.merge(labels, heights, share, impl="reference"))
    np.testing.assert_array_equal(got > 0, labels > 0)


@each_impl
def test_hills_are_one_where_the_pass_is_high(impl):
    labels = np.array([[1, 1, 2, 2, 2, 3, 3]], np.int32)
    heights = np.array([[0.9, 0.5, 0.5, 0.8, 0.2, 0.2, 1.0]], np.float32)
    assert op.merge(labels, heights, 0.6, impl=impl).tolist() == [[1, 1, 1, 1, 1, 3, 3]]
    assert op.merge(labels, heights, 0.7, impl=impl).tolist() == labels.tolist()
    assert op.merge(labels, heights, 0.1, impl=impl).tolist() == [[1] * 7]


@each_case
def test_watershed_matches_the_reference(case):
    labels = case.make()
    random = np.random.default_rng(1)
    levels = random.integers(0, 5, labels.shape).astype(np.uint8) * 60
    seeds = np.where(random.random(labels.shape) < 0.1, labels, 0)
    got = op.watershed(levels, seeds, labels > 0, impl="cpu")
    np.testing.assert_array_equal(got, op.watershed(levels, seeds, labels > 0, impl="reference"))
    assert not got[labels == 0].any()


@each_impl
def test_floods_meet_on_the_ridge(impl):
    levels = np.array([[0, 10, 30, 20, 0, 5]], np.uint8)
    seeds = np.array([[1, 0, 0, 0, 2, 0]], np.int32)
    got = op.watershed(levels, seeds, np.array([[1, 1, 1, 1, 1, 0]], bool), impl=impl)
    assert got.tolist() in ([[1, 1, 1, 2, 2, 0]], [[1, 1, 2, 2, 2, 0]]), "the ridge itself goes to one of them"


@each_case
def test_rings_match_the_reference(case):
    labels = case.make()
    got, want = op.trace(labels, impl="cpu"), op.trace(labels, impl="reference")
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@each_case
@each_impl
def test_the_areas_of_rings_add_up_to_the_pixels(case, impl):
    labels = case.make()
    points, starts, owners = op.trace(labels, impl=impl)
    areas = shoelace(points, starts)
    assert (areas != 0).all()
    totals = np.bincount(owners, weights=areas, minlength=100)
    np.testing.assert_array_equal(totals[1:], np.bincount(labels.ravel(), minlength=100)[1:])


@each_impl
def test_rings_in_holes_are_told_apart(impl):
    points, starts, owners = op.trace(nested(), impl=impl)
    rings = sorted(zip(owners.tolist(), shoelace(points, starts).tolist(), strict=True))
    assert rings == [(1, -121.0), (1, 169.0), (2, -49.0), (2, 81.0), (3, -1.0), (3, 9.0), (4, 1.0)]


@each_case
@pytest.mark.parametrize("tolerance", [0.0, 0.8, 3.0])
def test_simplified_rings_match_the_reference(case, tolerance):
    points, starts, _ = op.trace(case.make())
    got = op.simplify(points, starts, tolerance, impl="cpu")
    np.testing.assert_array_equal(got, op.simplify(points, starts, tolerance, impl="reference"))
    assert got.all() or tolerance > 0


@each_case
@pytest.mark.parametrize("tolerance", [0.0, 0.75, 3.0])
def test_tangled_rings_are_those_of_the_reference(case, tolerance):
    points, starts, owners = op.trace(case.make())
    keep = op.simplify(points, starts, tolerance)
    holes = shoelace(points, starts) < 0
    left = points[keep], np.append(0, np.cumsum(keep))[starts], owners
    np.testing.assert_array_equal(op.tangled(left, holes, impl="cpu"), op.tangled(left, holes, impl="reference"))


SQUARE = [(0, 0), (9, 0), (9, 9), (0, 9)]


@each_impl
@pytest.mark.parametrize(
    ("rings", "holes", "is_tangled"),
    [
        ([SQUARE], [False], False),
        ([[(0, 0), (9, 9), (9, 0), (0, 9)]], [False], True),  # a bow
        ([[(0, 0), (9, 0), (4, 0), (4, 5)]], [False], True),  # goes back along itself
        ([[(0, 0), (4, 0), (8, 4), (8, 0), (4, 0), (0, 4)]], [False], True),  # a corner that is come by twice
        ([[(0, 0), (8, 0), (8, 8), (4, 0), (0, 8)]], [False], True),  # a corner on a side
        ([SQUARE, [(2, 2), (2, 4), (4, 4)]], [False, True], False),
        ([SQUARE, [(2, 2), (2, 4), (12, 4)]], [False, True], True),  # a hole across the edge
        ([SQUARE, [(12, 2), (12, 4), (14, 4)]], [False, True], True),  # a hole outside
        ([SQUARE, [(0, 0), (2, 4), (4, 4)]], [False, True], True),  # a hole that touches the outside
        ([SQUARE, [(2, 2), (2, 7), (7, 7), (7, 2)], [(4, 4), (6, 4), (6, 6)]], [False, True, False], False),
        ([SQUARE, [(2, 2), (4, 4), (2, 4)]], [False, False], True),  # a part within another
    ],
)
def test_what_is_tangled(impl, rings, holes, is_tangled):
    other = [(20, 20), (29, 20), (29, 29)]  # an object that is well
    points = np.array([corner for ring in [*rings, other] for corner in ring], np.int64)
    starts = np.cumsum([0, *map(len, rings), len(other)])
    owners = np.array([3] * len(rings) + [8], np.int32)
    found = op.tangled((points, starts, owners), np.array([*holes, False]), impl=impl)
    assert found.tolist() == ([3] if is_tangled else [])


@each_case
@each_impl
def test_filled_labels_are_those_whose_holes_scipy_fills(case, impl):
    labels = case.make()
    which = np.unique(labels[labels > 0])[::2]  # in parts, in holes of others, without holes: all the same
    got = op.filled(op.trace(labels), which, impl=impl)
    assert got.shape == (len(which), 5)
    for row, label in zip(got, which, strict=True):
        whole = ndimage.binary_fill_holes(np.pad(labels == label, 1), np.ones((3, 3))).astype(np.int32)
        totals, _ = op.sums(whole, np.zeros(whole.shape, np.float32), 1, impl="reference")
        np.testing.assert_array_equal(row, totals[0, [0, 7, 8, 9, 10]])


@each_case
def test_holders_match_the_reference(case):
    labels = case.make()
    rings = op.trace(labels)
    got, want = (op.holders(labels, rings, impl=impl) for impl in ("cpu", "reference"))
    assert got.dtype == want.dtype == np.int32 and len(got) == labels.max(initial=0)
    np.testing.assert_array_equal(got, want)


@each_impl
def test_the_innermost_hole_around_a_label_counts(impl):
    assert op.holders(nested(), op.trace(nested()), impl=impl).tolist() == [0, 1, 2, 3]


@each_case
def test_hulls_match_the_reference(case):
    points, starts, _ = op.trace(case.make())
    got, want = op.hulls(points, starts, impl="cpu"), op.hulls(points, starts, impl="reference")
    np.testing.assert_allclose(got[:, [0, 1, 4]], want[:, [0, 1, 4]], rtol=1e-12)
    # Of two diameters of the same length either may be the longest; what lies across it may then differ.
    assert (got[:, 2] <= got[:, 0] + 1e-9).all() and (got[:, 2] >= got[:, 1] - 1e-9).all()


@each_impl
def test_feret_of_a_long_rectangle_is_its_diagonal_and_its_side(impl):
    corners = np.array([[0, 0], [30, 0], [30, 10], [0, 10]], np.int64)
    row = op.hulls(corners, np.array([0, 4]), impl=impl)[0]
    assert row[0] == pytest.approx(np.hypot(30, 10)) and row[1] == pytest.approx(10) and row[4] == 300
    assert row[2] == pytest.approx(2 * 300 / np.hypot(30, 10)), "a corner on either side of the diagonal"
    assert abs(np.tan(row[3])) == pytest.approx(1 / 3)


@each_case
def test_sums_match_the_reference(case):
    labels = case.make()
    values = np.random.default_rng(2).random(labels.shape).astype(np.float32)
    num = int(labels.max(initial=0)) + 1  # one that is absent too
    got, want = op.sums(labels, values, num, impl="cpu"), op.sums(labels, values, num, impl="reference")
    np.testing.assert_allclose(got[0], want[0], rtol=1e-12)
    np.testing.assert_array_equal(got[1], want[1])


def test_wrong_shapes_and_values_are_named():
    picture = np.zeros((4, 5), np.uint8)
    with pytest.raises(ShapeError, match=r"seeds is \[3, 5\].*\[4, 5\]"):
        op.watershed(picture, np.zeros((3, 5), np.int32), picture > 0)
    with pytest.raises(ShapeError, match=r"mask is \[2, 4, 5\]"):
        op.regions(np.zeros((2, 4, 5), bool))
    with pytest.raises(ShapeError, match=r"mask is \[20\]"):
        op.depth(np.zeros(20, bool))
    with pytest.raises(ShapeError, match="levels are float64"):
        op.watershed(picture.astype(float), picture.astype(np.int32), picture > 0)
    with pytest.raises(ConfigError, match=r"tolerance = -1"):
        op.simplify(np.zeros((0, 2), np.int64), np.zeros(1, np.int64), -1)


def test_without_numba_the_choice_says_why(monkeypatch):
    monkeypatch.setattr(cpu, "find_spec", lambda name: None)
    choice = op.choose_impl()
    assert choice.impl == "reference" and choice.against == {"cpu": "numba is not installed"}
    with pytest.raises(KernelUnavailable, match=r"impl='cpu' cannot run here .*numba is not installed"):
        op.regions(blobs(8, 8, 1) > 0, impl="cpu")


def test_more_runs_than_expected(monkeypatch):
    mask = np.random.default_rng(0).random((24, 31)) < 0.6
    monkeypatch.setattr(cpu, "RUNS", 5)
    for name in ("depth", "regions"):
        got, want = (getattr(op, name)(mask, impl=impl) for impl in ("cpu", "reference"))
        np.testing.assert_array_equal(got[0], want[0])


@pytest.mark.parametrize("room", [0, 5, 200])
def test_more_corners_than_expected(monkeypatch, room):
    labels = blobs(40, 61, 25)
    monkeypatch.setattr(cpu, "CORNERS", room)
    for mine, theirs in zip(op.trace(labels, impl="cpu"), op.trace(labels, impl="reference"), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_sums_of_values_are_added_in_the_order_of_the_pixels():
    values = np.random.default_rng(0).random((40, 61)).astype(np.float32)
    labels = blobs(40, 61, 9)
    totals, _ = op.sums(labels, values, 9, impl="cpu")
    for label in range(1, 10):
        assert totals[label - 1, 6] == sum(values[labels == label].tolist()), "to the last bit"


def test_more_places_where_labels_meet_than_expected(monkeypatch):
    pytest.importorskip("numba")
    random = np.random.default_rng(0)
    labels = random.integers(0, 9, (24, 31)).astype(np.int32)
    heights = random.random((24, 31)).astype(np.float32)
    monkeypatch.setattr(cpu, "SIDES", 5)
    got, want = (op.merge(labels, heights, 0.9, impl=impl) for impl in ("cpu", "reference"))
    np.testing.assert_array_equal(got, want)
