"""Shape checks: letters bind once, and the message shows what is known."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hotlap.base.errors import ShapeError
from hotlap.base.shapes import bind_dims


def tensor(*shape):
    return SimpleNamespace(shape=shape)


def test_letters_bind_once_and_come_back():
    assert bind_dims(a=(tensor(8, 3), "N 3"), b=(tensor(8, 5), "N C")) == {"N": 8, "C": 5}


def test_leading_dimensions_may_be_free():
    assert bind_dims(a=(tensor(2, 4, 8, 3), "... N 3")) == {"N": 8}
    assert bind_dims(a=(tensor(8, 3), "... N 3")) == {"N": 8}


def test_the_message_shows_want_got_and_what_is_bound():
    with pytest.raises(ShapeError) as caught:
        bind_dims(means=(tensor(8, 3), "N 3"), quats=(tensor(7, 3), "N 4"))
    assert "quats must be [N, 4], got [7, 3] (bound: N=8)" in str(caught.value)


@pytest.mark.parametrize("shape", [(8,), (8, 3, 1), ()])
def test_a_wrong_rank_is_refused(shape):
    with pytest.raises(ShapeError, match=r"a must be \[N, 3\]"):
        bind_dims(a=(tensor(*shape), "N 3"))


def test_one_letter_twice_in_a_spec_means_a_square():
    assert bind_dims(a=(tensor(3, 3), "N N")) == {"N": 3}
    with pytest.raises(ShapeError, match=r"\[N, N\], got \[3, 4\]"):
        bind_dims(a=(tensor(3, 4), "N N"))


def test_too_few_dimensions_for_a_free_start_are_refused():
    with pytest.raises(ShapeError, match=r"\[\.\.\., N, 3\], got \[3\]"):
        bind_dims(a=(tensor(3), "... N 3"))
