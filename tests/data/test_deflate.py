"""Bytes packed and unpacked, with the faster library and without."""

from __future__ import annotations

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


@pytest.fixture(params=["isal", "zlib"])
def library(request, monkeypatch):
    if request.param == "isal":
        pytest.importorskip("isal")
    else:
        monkeypatch.setattr(module, "_library", lambda: (zlib, 3))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", CONTENTS)
def test_any_bytes_come_back(name):
    content = CONTENTS[name]
    packed = deflate(content)
    assert zlib.decompress(packed) == content and inflate(packed, len(content)) == content
    for level in (0, 1, 6, 9):
        assert inflate(zlib.compress(content, level), len(content)) == content
    assert len(packed) <= len(zlib.compress(content, 1)) * 1.6 + 100


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
