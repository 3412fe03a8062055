"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotlap.base import format as f


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1234.5, "1,234"), (12.345, "12.3"), (0.012345, "0.0123"), (2.5e6, "2.50e6"), (2.5e-5, "2.50e-5"),
     (None, "–"), (math.nan, "–"), (math.inf, "–")],
)  # fmt: skip
def test_numbers(value, text):
    assert f.format_number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1500, "1.50 s"), (12.34, "12.3 ms"), (0.05, "50.0 µs"), (5e-5, "50.0 ns"), (0, "0 ms"), (None, "–")],
)
def test_times(value, text):
    assert f.format_ms(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, "500 ms"), (119, "119 s"), (150, "2 min 30 s"), (7500, "2 h 05 min")]
)
def test_long_times(value, text):
    assert f.format_s(value) == text


def test_an_interval_shows_its_ends_apart_in_the_unit_of_its_centre():
    assert f.format_ms_interval(12.3, 12.1, 12.6) == "12.3 ms [12.1, 12.6]"
    assert f.format_ms_interval(12.3456, 12.345, 12.346) == "12.346 ms [12.345, 12.346]"
    assert f.format_ms_interval(12.3, math.nan, 12.6) == "12.3 ms"
    assert f.format_ms_interval(None, 1, 2) == "–"


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (1023, "1023 B"), (2**20, "1.00 MiB"), (3 * 2**40, "3.00 TiB"), (None, "–")]
)
def test_sizes(value, text):
    assert f.format_bytes(value) == text


def test_ratios_rates_percentages_errors_counts_lists():
    assert f.format_ratio(2.312, 2.25, 2.38) == "2.31x [2.25, 2.38]"
    assert f.format_ratio(2.312) == "2.31x"
    assert f.format_rate(1230) == "1,230 samples/s"
    assert f.format_percent(0.051) == "5.1%"
    assert f.format_percent(0.51) == "51%"
    assert f.format_error(2.34e-5) == "2.3e-5"
    assert f.format_error(math.nan) == "not finite"
    assert f.format_error(None) == "not finite"
    assert f.format_count(1, "process", "processes") == "1 process"
    assert f.format_count(8, "process", "processes") == "8 processes"
    assert f.format_list(["a", "b", "c"]) == "a, b and c"
    assert f.format_list([]) == ""


@given(st.floats(min_value=1e-3, max_value=999_999, allow_nan=False))
def test_a_plain_number_reads_back_within_its_figures(value):
    assert float(f.format_number(value).replace(",", "")) == pytest.approx(value, rel=5.1e-3)
