"""Rows of PNG back to pixels: every implementation against the picture that they were made of."""

from __future__ import annotations

import numpy as np
import pytest

from hotlap.base.errors import KernelUnavailable, ShapeError
from hotlap.kernels.unfilter import cpu
from hotlap.kernels.unfilter.cases import CASES
from hotlap.kernels.unfilter.op import IMPLS, choose_impl, unfilter


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_gives_the_picture(case, impl):
    try:
        choose_impl(impl)
    except KernelUnavailable as error:
        pytest.skip(str(error))
    lines, made = case.make()
    got = unfilter(lines, case.step, impl=impl)
    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got, made)


def test_without_numba_numpy_does_it(monkeypatch):
    monkeypatch.setattr(cpu, "why_not", lambda: "numba is not installed")
    choose_impl.cache_clear()
    try:
        assert choose_impl().impl == "reference" and choose_impl().against == {"cpu": "numba is not installed"}
    finally:
        choose_impl.cache_clear()


def test_rows_that_are_none_are_named():
    with pytest.raises(ValueError, match="a row has the filter 5"):
        unfilter(np.full((2, 4), 5, np.uint8), 3)
    for lines in (np.zeros((2, 5), np.uint8), np.zeros((2, 1), np.uint8), np.zeros((2, 4), np.int32)):
        with pytest.raises(ShapeError, match=r"Expected uint8 \[H, 1 \+ W \* 3\], of one pixel or more"):
            unfilter(lines, 3)
