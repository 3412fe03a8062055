"""Arrays from npz files, whole and damaged."""

from __future__ import annotations

import io

import numpy as np
import pytest

from hotlap.data.npz import UnreadableArrays, read_npz


def packed():
    file = io.BytesIO()
    np.savez_compressed(file, some=np.random.default_rng(0).integers(4, size=9_999), other=np.arange(3))
    return file.getvalue()


def test_arrays_are_given_by_name(tmp_path):
    (tmp_path / "a.npz").write_bytes(packed())
    assert set(read_npz(tmp_path / "a.npz")) == {"some", "other"}
    found = read_npz(tmp_path / "a.npz", ["other"])
    assert list(found) == ["other"] and found["other"].tolist() == [0, 1, 2]


def one_array():
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    return file.getvalue()


def of_objects():
    file = io.BytesIO()
    np.savez(file, some=np.array([{}], dtype=object), other=np.arange(3))
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        (b"", "it is no npz file, or is cut short"),
        (one_array(), "it is no npz file, or is cut short"),
        (packed()[:-30], "it is no npz file, or is cut short"),
        (packed()[:500] + b"\xff" * 20 + packed()[520:], "while decompressing"),
        (of_objects(), "Object arrays cannot be loaded"),
        (packed().replace(b"other", b"othen"), "it has no array 'other'"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path, content, reason):
    if content is not None:
        (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(UnreadableArrays, match=reason):
        read_npz(tmp_path / "a.npz", ["some", "other"])


def test_whatever_byte_is_damaged_the_file_is_refused_or_read_right(tmp_path):
    """Some bytes say nothing of the contents, such as dates."""
    file, refused = io.BytesIO(), 0
    np.savez_compressed(file, other=np.arange(3))
    for place in range(len(file.getvalue())):
        damaged = bytearray(file.getvalue())
        damaged[place] ^= 0xFF
        (tmp_path / "a.npz").write_bytes(damaged)
        try:
            assert read_npz(tmp_path / "a.npz")["other"].tolist() == [0, 1, 2]
        except UnreadableArrays:
            refused += 1
    assert refused > 100
