"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotlap.base import format as f


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.0, "0 ms"),
        (12.345, "12.3 ms"),
        (0.0123, "12.3 µs"),
        (0.99, "0.990 ms"),
        (1234.5, "1.23 s"),
        (5e-6, "5.00 ns"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "–"),
    ],
)
def test_format_ms(value, words):
    assert f.format_ms(value) == words


def test_an_interval_shows_its_ends_apart_in_the_unit_of_the_centre():
    assert f.format_ms_interval(12.34, 12.1, 12.6) == "12.3 ms [12.1, 12.6]"
    assert f.format_ms_interval(999.0, 990.0, 1010.0) == "999 ms [990, 1,010]"
    assert f.format_ms_interval(31.64, 31.63, 31.66) == "31.640 ms [31.630, 31.660]"
    assert f.format_ms_interval(5.0, math.nan, None) == "5.00 ms"
    assert f.format_ms_interval(None, 1.0, 2.0) == "–"


def test_format_gain():
    assert f.format_gain(1.3) == "about 1.30x"
    assert f.format_gain(1.3, at_most=True) == "at most about 1.30x"


def test_format_ratio():
    assert f.format_ratio(2.31, 2.25, 2.38) == "2.31x [2.25, 2.38]"
    assert f.format_ratio(29.04) == "29.0x"
    assert f.format_ratio(1.0, 1.0, 1.0) == "1.00x [1.00, 1.00]"
    assert f.format_ratio(math.nan, 1, 2) == "–"


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (5 * 1024**3, "5.00 GiB"), (2 * 1024**5, "2,048 TiB"),
     (None, "–")],
)  # fmt: skip
def test_format_bytes(value, words):
    assert f.format_bytes(value) == words


def test_rates_percentages_and_errors():
    assert f.format_rate(1234.0) == "1,234 samples/s"
    assert f.format_percent(0.021) == "2.1%"
    assert f.format_percent(0.38) == "38%"
    assert f.format_percent(0.0999) == "10%"
    assert f.format_error(2.6e-7) == "2.6e-7"
    assert f.format_error(math.nan) == "not finite"
    assert f.format_error(0.0) == "0"


def test_seconds_become_minutes_and_hours():
    assert f.format_s(1.8) == "1.80 s"
    assert f.format_s(192) == "3 min 12 s"
    assert f.format_s(3600 * 3) == "3 h 00 min"
    assert f.format_s(None) == "–"


def test_counts_and_lists():
    assert f.format_count(1, "process", "processes") == "1 process"
    assert f.format_count(8, "process", "processes") == "8 processes"
    assert f.format_list(["a", "b", "c"]) == "a, b and c"
    assert f.format_list([]) == ""
    assert f.format_target("net", "a small one") == "net: a small one"
    assert f.format_target("net", "") == "net"


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_no_number_is_too_odd_to_write(value):
    for write in (f.format_ms, f.format_s, f.format_bytes, f.format_ratio, f.format_percent, f.format_error):
        words = write(value)
        assert words
        assert "nan" not in words
        assert "inf" not in words.replace("finite", "")


@pytest.mark.parametrize(("value", "words"), [(19.0, "19"), (1200.0, "1,200"), (0.0, "0"), (4.5, "4.50")])
def test_a_mean_of_counts_has_a_fraction_only_where_it_is_one(value, words):
    assert f.format_mean_count(value) == words
