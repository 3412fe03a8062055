"""Dataclasses to JSON and back."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotlap.records import codec
from hotlap.records.codec import decode, encode, to_json


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int
    weight: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    inner: Inner
    maybe: Inner | None = None
    many: list[Inner] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    names: tuple[str, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)


inners = st.builds(Inner, size=st.integers(), weight=st.floats(allow_nan=False, allow_infinity=False))
plain = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.builds(
        Outer,
        name=st.text(),
        inner=inners,
        maybe=st.none() | inners,
        many=st.lists(inners, max_size=3),
        values=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=5),
        names=st.tuples(st.text(), st.text()),
        notes=st.dictionaries(st.text(), plain | st.lists(plain, max_size=3), max_size=3),
    )
)
def test_what_goes_in_comes_out(thing):
    data = encode(thing)
    assert json.loads(to_json(data)) == data
    assert decode(Outer, json.loads(to_json(data))) == thing


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_becomes_null_and_reads_as_nan(value):
    data = encode(Inner(size=1, weight=value))
    assert data == {"size": 1, "weight": None}
    assert math.isnan(decode(Inner, data).weight)


def test_samples_are_encoded_in_one_go(monkeypatch):
    """A search saves its record after each trial, with as many samples as a fast model has steps."""
    calls = []

    def counted(value):
        calls.append(value)
        return real(value)

    real = codec.encode
    monkeypatch.setattr(codec, "encode", counted)
    samples = [0.5, math.inf, 2.0] * 1000
    assert counted({"ms": samples}) == {"ms": [0.5, None, 2.0] * 1000} and len(calls) == 2
    assert counted({"mixed": [1, 2.5, True, math.nan, None], "none": []}) == {
        "mixed": [1, 2.5, True, None, None],
        "none": [],
    }


def test_samples_are_read_in_one_go(monkeypatch):
    calls = []
    real = codec.decode
    monkeypatch.setattr(codec, "decode", lambda kind, data: calls.append(kind) or real(kind, data))
    assert codec.decode(list[float], [0.5, 2.0] * 1000) == [0.5, 2.0] * 1000 and len(calls) == 1
    read = codec.decode(list[float], [1, None, 0.5])
    assert [type(item) for item in read] == [float] * 3 and math.isnan(read[1])
    with pytest.raises(ValueError, match="float was expected, got 'a'"):
        codec.decode(list[float], [0.5, "a"])


def test_a_line_holds_one_value_or_all_of_a_list_of_numbers():
    data = {"name": "a", "none": {}, "ms": [0.5, 2, None], "rows": [{"ok": True}], "words": ["a", "b"]}
    assert to_json(data) == (
        '{\n "name": "a",\n "none": {},\n "ms": [0.5, 2, null],\n "rows": [\n  {\n   "ok": true\n  }\n ],\n'
        ' "words": [\n  "a",\n  "b"\n ]\n}'
    )
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"ms": [math.nan]})


def test_paths_sets_and_numpy_numbers_are_plain():
    data = encode({"p": Path("a/b"), "s": {1}, "f": np.float32(0.5), "i": np.int64(3), "n": np.float64("nan"), 4: True})
    assert data == {"p": "a/b", "s": [1], "f": 0.5, "i": 3, "n": None, "4": True}
    json.dumps(data, allow_nan=False)


def test_what_has_no_place_in_json_is_refused():
    with pytest.raises(TypeError, match="object has no place in a record"):
        encode({"x": object()})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"inner": {"size": 1}}, "name is missing"),
        ({"name": "a"}, "inner is missing"),
        ({"name": 5, "inner": {"size": 1}}, "name: str was expected, got 5"),
        ({"name": "a", "inner": {"size": "x"}}, "inner: size: int was expected, got 'x'"),
        ({"name": "a", "inner": []}, "inner: Inner must be a mapping, got list"),
        ({"name": "a", "inner": {"size": 1}, "many": {}}, "many: a list was expected, got dict"),
        ({"name": "a", "inner": {"size": 1}, "notes": []}, "notes: a mapping was expected, got list"),
    ],
)
def test_what_is_missing_or_mistyped_is_named(data, words):
    with pytest.raises(ValueError, match=words):
        decode(Outer, data)


def test_fields_of_a_later_version_are_passed_over():
    assert decode(Inner, {"size": 1, "colour": "red"}) == Inner(size=1)
