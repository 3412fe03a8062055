"""Files damaged at random, and what a reader may do with them; for the tests that fuzz readers.

``HOTLAP_FUZZ_CASES`` sets the cases of each reader; CI runs the same few every time, a campaign many new ones.
"""

from __future__ import annotations

import os
import struct
import tracemalloc

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from hotlap.base.errors import HotlapError

ASKED = os.environ.get("HOTLAP_FUZZ_CASES")
CASES = int(ASKED or 20)
FUZZ = settings(
    max_examples=CASES, derandomize=ASKED is None, database=None, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
ROOM = 24 << 20
"""Bytes that a reader may take whatever the file: the random points of a scene without any are most of it."""
TIMES = 1300
"""Bytes for each byte of the file: gzip unpacks 1,032 to one, and arrays are made of that."""
WORDS = [
    b"nan", b"inf", b"-1", b"0", b"1e400", b"1e200", b"99999999999999999999", b"\r\n", b"\n\n", b"#", b'"', b"{", b"[",
    b"]", b"null", b"\x00", b"\xff\xfe", b"list", b"element vertex 1000000000000", b"property float x", b" ", b"..",
]  # fmt: skip
NUMBERS = [struct.pack("<Q", value) for value in (0, 1, 255, 2**31, 2**32 - 1, 10**18, 2**63, 2**64 - 1)]
NUMBERS += [struct.pack("<d", value) for value in (float("nan"), float("inf"), 0.0, -1.0, 1e308, 1e-308)]
NUMBERS += [struct.pack("<f", value) for value in (float("nan"), float("inf"), 0.0, -1e38)]


@st.composite
def edits(draw):
    """A few changes to a file's bytes: cut, overwritten, put in, taken out or said twice, at places from 0 to 1."""
    place = st.floats(0, 1)
    piece = st.one_of(st.binary(max_size=9), st.sampled_from(WORDS), st.sampled_from(NUMBERS))
    kinds = st.sampled_from(["write", "write", "insert", "cut", "drop", "twice", "front"])
    return draw(st.lists(st.tuples(kinds, place, place, piece), min_size=1, max_size=4))


def damage(content: bytes, changes) -> bytes:
    for kind, first, second, piece in changes:
        start, end = sorted((int(first * len(content)), int(second * len(content))))
        end = min(end, start + 64)
        if kind == "write":
            content = content[:start] + piece + content[start + len(piece) :]
        elif kind == "front":  # headers are short, and most of what can be lied about is there
            content = content[: start % 64] + piece + content[start % 64 + len(piece) :]
        elif kind == "insert":
            content = content[:start] + piece + content[start:]
        elif kind == "cut":
            content = content[:start]
        else:
            content = content[:start] + content[start:end] * (2 if kind == "twice" else 0) + content[end:]
    return content


def sound_or_ours(read, size: int) -> None:
    """Runs a reader; anything but an answer or one of our errors is a failure, and so is too much memory."""
    tracemalloc.start()
    try:
        read()
    except HotlapError as error:
        assert str(error)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < ROOM + TIMES * size
