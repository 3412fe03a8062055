"""Bytes packed and unpacked, with the faster library and without."""

from __future__ import annotations

import sys
import zlib

import numpy as np
import pytest

from hotlap.data import deflate as module
from hotlap.data.deflate import deflate, inflate

CONTENTS = {
    "nothing": b"",
    "zeros": bytes(100_000),
    "noise": np.random.default_rng(0).bytes(70_000),
    "labels": (np.arange(200)[:, None] // 7 * (np.arange(300) // 9 % 3)).astype("<u2").tobytes(),
}


@pytest.fixture(params=["deflate", "isal", "zlib"])
def library(request, monkeypatch):
    """With all three, without the one that unpacks only what is whole, and with Python's own alone."""
    if request.param != "zlib":
        pytest.importorskip(request.param)
    if request.param != "deflate":
        monkeypatch.setattr(module, "_whole_library", lambda: None)
    if request.param == "zlib":
        monkeypatch.setattr(module, "_library", lambda: (zlib, 3))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", CONTENTS)
def test_any_bytes_come_back(name):
    content = CONTENTS[name]
    packed = deflate(content)
    assert zlib.decompress(packed) == content and inflate(packed, len(content)) == content
    for level in (0, 1, 6, 9):
        assert inflate(zlib.compress(content, level), len(content)) == content
        assert inflate(zlib.compress(content, level), 2 * len(content) + 1) == content
    assert len(packed) <= len(zlib.compress(content, 1)) * 1.6 + 100


def test_without_packages_pythons_own_is_used(monkeypatch):
    for found in (module._library, module._whole_library):
        monkeypatch.setattr(module, found.__name__, found.__wrapped__)
    for package in ("deflate", "isal"):
        monkeypatch.setitem(sys.modules, package, None)
    assert module._library()[0] is zlib and module._whole_library() is None
    assert inflate(deflate(b"content"), 100) == b"content"


@pytest.mark.usefixtures("library")
def test_bytes_behind_the_end_do_not_matter():
    packed = deflate(CONTENTS["labels"])
    assert inflate(packed + b"more", 1 << 20) == CONTENTS["labels"]


@pytest.mark.usefixtures("library")
def test_no_more_is_unpacked_than_asked_for_and_less_of_what_is_cut_short():
    packed = zlib.compress(CONTENTS["noise"])
    assert inflate(packed, 1000) == CONTENTS["noise"][:1000]
    part = inflate(packed[: len(packed) // 2], 70_000)
    assert 0 < len(part) < 70_000 and CONTENTS["noise"].startswith(part)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("packed", [b"no zlib at all", b"\x78\x9c" + b"\xff" * 30])
def test_damage_is_told(packed):
    with pytest.raises(ValueError, match="its compressed data are damaged"):
        inflate(packed, 100)


def test_damaged_bytes_are_what_pythons_own_library_makes_of_them(monkeypatch):
    """Whatever is there: the same bytes, or refused by both."""
    pytest.importorskip("deflate")

    def outcome(packed, most):
        try:
            return bytes(inflate(packed, most))
        except ValueError:
            return "refused"

    random, cases = np.random.default_rng(0), []
    for content in CONTENTS.values():
        packed = zlib.compress(content[:3000], 6)
        for _ in range(150):
            damaged = bytearray(packed[: random.integers(len(packed) // 2, len(packed) + 1)])
            for place in random.integers(len(damaged), size=random.integers(3)) if damaged else ():
                damaged[place] = random.integers(256)
            cases.append((bytes(damaged), int(random.choice([1, 2000, 3000, 4000]))))
    monkeypatch.setattr(module, "_library", lambda: (zlib, 3))
    quick = [outcome(*case) for case in cases]
    monkeypatch.setattr(module, "_whole_library", lambda: None)
    assert quick == [outcome(*case) for case in cases]
    assert 0 < quick.count("refused") < len(quick)
