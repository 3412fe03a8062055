"""Pickles of data are read whatever wrote them; one that asks for anything else is refused and runs nothing."""

from __future__ import annotations

import os
import pickle
import tracemalloc

import numpy as np
import pytest

from hotlap.data.plain_pickle import NotPlain, load_plain_pickle

ARRAY = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "array",
    [ARRAY, ARRAY.T, ARRAY.astype(">f8"), ARRAY.astype(np.int64)[:0], ARRAY > 3, np.array(2.5)],
    ids=["plain", "fortran", "big-endian", "empty", "bool", "scalar"],
)
def test_arrays_of_every_protocol(array, protocol):
    found = load_plain_pickle(pickle.dumps({"a": [array, ("text", 3, None)]}, protocol), "x.dat")
    np.testing.assert_array_equal(found["a"][0], array)
    assert found["a"][0].dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
    assert found["a"][1] == ("text", 3, None)


def test_a_pickle_of_python_2():
    raw = ARRAY[0, :2].tobytes()
    text = (
        b"cnumpy.core.multiarray\n_reconstruct\np0\n(cnumpy\nndarray\np1\n(I0\ntp2\nS'b'\np3\ntp4\nRp5\n"
        b"(I1\n(I2\ntp6\ncnumpy\ndtype\np7\n(S'f4'\np8\nI0\nI1\ntp9\nRp10\n(I3\nS'<'\np11\nNNNI-1\nI-1\nI0\ntp12\nb"
        b"I00\nS" + repr(raw)[1:].encode() + b"\np13\ntp14\nb."
    )
    np.testing.assert_array_equal(load_plain_pickle(text, "x.dat"), ARRAY[0, :2])


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_hostile_pickle_is_refused_and_does_nothing(tmp_path, protocol):
    target = str(tmp_path / "made")
    with pytest.raises(NotPlain, match=r"'evil\.dat'.*asks for (posix|nt|os)\.mkdir"):
        load_plain_pickle(pickle.dumps([1, Bomb(target)], protocol), "evil.dat")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "EOFError|Ran out"),
        (b"not a pickle", "pickle|could not|invalid"),
        (pickle.dumps(np.array([print], dtype=object)), "dtype 'O8' is not of plain numbers"),
        (pickle.dumps(np.ndarray), "holds a type, not data"),
        (pickle.dumps(ARRAY)[:-20], "refused"),
        (b"cbuiltins\neval\n(S'1'\ntR.", "asks for builtins.eval"),
        (b"cnumpy.core.multiarray\nscalar\n.", "asks for numpy.core.multiarray.scalar"),
        (b"Pabc\n.", "outside object 'abc'"),
        (b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".", "1099511627776 bytes are announced, 1 are there"),
    ],
)
def test_what_is_not_data_is_refused_by_name(content, words):
    with pytest.raises(NotPlain, match=words) as caught:
        load_plain_pickle(content, "x.dat")
    assert "'x.dat'" in str(caught.value)


def test_sizes_that_do_not_agree_are_refused():
    good = pickle.dumps(np.zeros(3, np.uint8), 2)
    bad = good.replace(b"K\x03\x85", b"K\x7f\x85")
    assert good != bad
    with pytest.raises(NotPlain, match=r"shape \(127,\) has 3 bytes"):
        load_plain_pickle(bad, "x.dat")


def test_a_short_file_cannot_ask_for_much_memory():
    tracemalloc.start()
    far_place = b"\x80\x02Nr\xff\xff\xff\x7f."  # puts None at place 2,147,483,647 of a table
    assert load_plain_pickle(far_place, "x.dat") is None
    doubled = []
    for _ in range(64):
        doubled = [doubled, doubled]
    found = load_plain_pickle(pickle.dumps(doubled), "x.dat")
    assert found[0] is found[1]
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
