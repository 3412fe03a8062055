"""Counting and looking up samples of few values: every implementation against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest

from hotlap.base.errors import KernelUnavailable, ShapeError
from hotlap.kernels.lookup import cpu
from hotlap.kernels.lookup.cases import CASES
from hotlap.kernels.lookup.op import IMPLS, choose_impl, count_values, look_up


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_matches_numpy(case, impl):
    try:
        choose_impl(impl)
    except KernelUnavailable as error:
        pytest.skip(str(error))
    samples, table = case.make()
    counts, found = count_values(samples, impl=impl), look_up(samples, table, impl=impl)
    assert counts.tolist() == [int((samples == value).sum()) for value in range(len(table))]
    assert found.dtype == table.dtype and found.flags.writeable
    np.testing.assert_array_equal(found, table[samples])


def test_without_numba_numpy_does_it(monkeypatch):
    monkeypatch.setattr(cpu, "why_not", lambda: "numba is not installed")
    choose_impl.cache_clear()
    try:
        assert choose_impl().impl == "reference" and choose_impl().against == {"cpu": "numba is not installed"}
        assert count_values(np.array([1, 1, 3], np.uint8))[:4].tolist() == [0, 2, 0, 1]
    finally:
        choose_impl.cache_clear()


def test_what_cannot_be_counted_or_looked_up_is_named():
    with pytest.raises(ShapeError, match=r"samples are float32\. Expected uint8 or uint16"):
        count_values(np.zeros(3, np.float32))
    with pytest.raises(ShapeError, match=r"table is \[255\]\. Expected \[256\], an entry for each uint8"):
        look_up(np.zeros(3, np.uint8), np.zeros(255, np.uint8))
