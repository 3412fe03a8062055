"""TIFF: every way of storing samples that other programs use, and label pictures they can read."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image

from hotlap.base.errors import DataError
from hotlap.data.tiff import read_pages, write_tiff


def samples(dtype, *shape):
    random = np.random.default_rng(0)
    if np.dtype(dtype).kind == "f":
        return random.normal(size=shape).astype(dtype)
    return (np.cumsum(random.integers(0, 9, shape), axis=1) * 57).astype(dtype)


def decoded(path):
    return [page.decode() for page in read_pages(path)]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int16", "float16", "float32", "float64"])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"byteorder": ">"},
        {"compression": "zlib"},
        {"compression": "zlib", "predictor": True, "byteorder": ">"},
        {"compression": "zlib", "predictor": True, "tile": (16, 32)},
        {"compression": "zlib", "rowsperstrip": 7},
        {"bigtiff": True},
    ],
    ids=lambda how: "+".join(how) or "plain",
)
def test_what_tifffile_writes_is_read(tmp_path, dtype, how):
    tifffile = pytest.importorskip("tifffile")
    if dtype.startswith("float"):
        how = {name: value for name, value in how.items() if name != "predictor"}  # it would need one more package
    for shape, more in [((37, 41), {}), ((37, 41, 3), {"photometric": "rgb"})]:
        want = samples(dtype, *shape)
        tifffile.imwrite(tmp_path / "a.tif", want, **how, **more)
        (got,) = decoded(tmp_path / "a.tif")
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got.reshape(shape), want)


def test_floats_stored_as_differences_are_read(tmp_path):
    want = samples("float32", 31, 40)
    Image.fromarray(want).save(tmp_path / "a.tif", compression="tiff_adobe_deflate", tiffinfo={317: 3})
    assert next(iter(read_pages(tmp_path / "a.tif"))).tag(317) == 3
    np.testing.assert_array_equal(decoded(tmp_path / "a.tif")[0][..., 0], want)


def test_planes_become_channels(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    want = samples("uint16", 3, 20, 21)
    tifffile.imwrite(tmp_path / "a.tif", want, planarconfig="separate", photometric="rgb")
    (got,) = decoded(tmp_path / "a.tif")
    np.testing.assert_array_equal(got, want.transpose(1, 2, 0))


@pytest.mark.parametrize("compression", ["tiff_lzw", "packbits"])
@pytest.mark.parametrize("noisy", [False, True])
def test_what_pillow_compresses_is_read(tmp_path, compression, noisy):
    random = np.random.default_rng(1)
    want = random.integers(0, 256 if noisy else 3, (90, 110), dtype=np.uint8)
    Image.fromarray(want).save(tmp_path / "a.tif", compression=compression)
    (got,) = decoded(tmp_path / "a.tif")
    np.testing.assert_array_equal(got[..., 0], want)


def test_every_page_is_read_in_order(tmp_path):
    pages = [samples("uint16", 9, 11) + n for n in range(4)]
    Image.fromarray(pages[0]).save(
        tmp_path / "a.tif", save_all=True, append_images=[Image.fromarray(p) for p in pages[1:]]
    )
    got = decoded(tmp_path / "a.tif")
    assert len(got) == 4
    for mine, theirs in zip(got, pages, strict=True):
        np.testing.assert_array_equal(mine[..., 0], theirs)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "float32"])
@pytest.mark.parametrize("shape", [(1, 1), (700, 333)])
def test_a_written_picture_comes_back_the_same(tmp_path, dtype, shape):
    want = samples(dtype, *shape)
    (tmp_path / "a.tif").write_bytes(write_tiff(want))
    (got,) = decoded(tmp_path / "a.tif")
    np.testing.assert_array_equal(got[..., 0], want)
    if dtype == "uint16":
        np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "a.tif")), want)
    tifffile = pytest.importorskip("tifffile")
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "a.tif").reshape(shape), want)


def test_a_page_pressed_as_jpeg_is_left_to_others(tmp_path):
    Image.new("RGB", (16, 16)).save(tmp_path / "a.tif", compression="jpeg")
    assert decoded(tmp_path / "a.tif") == [None]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda c: b"", "it is empty"),
        (lambda c: b"GIF89a..", "does not begin as one"),
        (lambda c: c[: len(c) // 2], "cut short"),
        (lambda c: c[:2] + b"\x07\0" + c[4:], "version is 7"),
    ],
)
def test_damage_is_named(tmp_path, spoil, words):
    (tmp_path / "a.tif").write_bytes(spoil(write_tiff(samples("uint16", 60, 50))))
    with pytest.raises(DataError, match=rf"a.tif' is no TIFF that can be read: .*{words}"):
        decoded(tmp_path / "a.tif")


def test_damaged_strips_and_circles_are_named(tmp_path):
    content = bytearray(write_tiff(samples("uint16", 60, 50)))
    content[8:40] = bytes(32)
    (tmp_path / "a.tif").write_bytes(content)
    with pytest.raises(DataError, match=r"a piece holds 0 bytes instead of 6000"):
        decoded(tmp_path / "a.tif")
    content = bytearray(write_tiff(samples("uint8", 5, 5)))
    (start,) = struct.unpack_from("<I", content, 4)
    (num,) = struct.unpack_from("<H", content, start)
    struct.pack_into("<I", content, start + 2 + 12 * num, start)
    (tmp_path / "a.tif").write_bytes(content)
    with pytest.raises(DataError, match="go round in a circle"):
        decoded(tmp_path / "a.tif")


def test_a_cut_anywhere_is_an_error_of_ours_or_harmless(tmp_path):
    buffer = io.BytesIO()
    Image.fromarray(samples("uint8", 20, 20)).save(buffer, "TIFF", compression="tiff_lzw")
    content = buffer.getvalue()
    refused = 0
    for length in range(0, len(content), 7):
        (tmp_path / "a.tif").write_bytes(content[:length])
        try:
            decoded(tmp_path / "a.tif")
        except DataError:
            refused += 1
    assert refused > len(content) // 7 // 2


def test_what_is_no_picture_is_not_written():
    with pytest.raises(DataError, match=r"complex64 array of \[2, 2\] cannot be a TIFF"):
        write_tiff(np.zeros((2, 2), np.complex64))
    with pytest.raises(DataError, match=r"uint8 array of \[0, 2\]"):
        write_tiff(np.zeros((0, 2), np.uint8))
