"""Pictures with all of their bits; what cannot be read is named with its reason."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps, PngImagePlugin

from hotlap.data.micrograph import numbers_in, pictures_in, read_pictures
from hotlap.data.picture_file import UnreadablePicture
from hotlap.data.png import is_plain, read_png
from hotlap.data.tiff import write_tiff
from hotlap.kernels.unfilter.cases import filtered
from hotlap.kernels.unfilter.op import unfilter


def one(path, **limits):
    (picture,) = read_pictures(path, **limits)
    return picture


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(values, kinds=(0, 1, 2, 3, 4), *parts, interlaced=0):
    """A PNG whose rows use these filters in turn; ``parts`` are further ones of the file, before the pixels."""
    height, width, channels = values.shape
    bits = 8 * values.dtype.itemsize
    stored = filtered(values.astype(values.dtype.newbyteorder(">")).view(np.uint8).reshape(height, width, -1), kinds)
    header = struct.pack(">IIBBBBB", width, height, bits, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, interlaced)
    data = chunk(b"IDAT", zlib.compress(stored.tobytes()))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(parts) + data + chunk(b"IEND", b"")


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_colour_of_16_bits_keeps_them(tmp_path, channels):
    values = np.random.default_rng(0).integers(0, 65536, (13, 9, channels)).astype(np.uint16)
    (tmp_path / "a.png").write_bytes(png(values))
    got = one(tmp_path / "a.png").pixels
    assert got.dtype == np.uint16
    np.testing.assert_array_equal(got, values[..., : 1 if channels == 2 else 3])
    (tmp_path / "a.tif").write_bytes(write_tiff(values[..., :3] if channels > 2 else values[..., 0]))
    np.testing.assert_array_equal(one(tmp_path / "a.tif").pixels, got)


@pytest.mark.parametrize("size", [(1, 1), (1, 12), (12, 1), (7, 20)])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_a_png_of_any_size_and_colour(size, channels, kind, tmp_path):
    values = np.random.default_rng(1).integers(0, np.iinfo(kind).max + 1, (*size, channels)).astype(kind)
    content = png(values)
    np.testing.assert_array_equal(read_png(content), values)
    (tmp_path / "a.png").write_bytes(content)
    for rows in (None, unfilter):
        np.testing.assert_array_equal(read_png(content, rows), values)
        got = one(tmp_path / "a.png", rows=rows).pixels
        np.testing.assert_array_equal(got, values[..., : 1 if channels < 3 else 3])
    if kind == np.uint8:
        np.testing.assert_array_equal(np.atleast_3d(np.asarray(Image.open(tmp_path / "a.png"))), values)


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "P", "1", "I;16"])
@pytest.mark.parametrize("level", [1, 9])
def test_pngs_of_pillow_are_read_as_by_pillow(mode, level, tmp_path):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 31, 3), np.uint8))
    image = Image.new("I;16", (31, 40), 777) if mode == "I;16" else noise.convert(mode)
    image.save(tmp_path / "a.png", compress_level=level, dpi=(90, 90))
    got, want = (one(tmp_path / "a.png", rows=rows).pixels for rows in (unfilter, None))
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


VALUES = np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8)
TURN = struct.pack(">2sHIHHHII", b"MM", 42, 8, 1, 0x0112, 3, 1, 6 << 16) + bytes(4)
"""EXIF that says: turned by a quarter."""


@pytest.mark.parametrize(
    ("parts", "plain", "shape"),
    [
        ([], True, (6, 9, 3)),
        ([chunk(b"tEXt", b"Software\0mine")], True, (6, 9, 3)),
        ([chunk(b"eXIf", TURN)], False, (9, 6, 3)),
        ([chunk(b"tEXt", b"Raw profile type exif\0\nexif\n 34\n" + (b"Exif\0\0" + TURN).hex().encode())], False, None),
        ([chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0<x tiff:Orientation='6'/>")], False, None),
        ([chunk(b"wHAT", b"")], False, (6, 9, 3)),
    ],
)
def test_only_what_leaves_the_samples_alone_is_plain(parts, plain, shape, tmp_path):
    content = png(VALUES, (0, 1, 2, 3, 4), *parts)
    assert is_plain(content) == plain
    (tmp_path / "a.png").write_bytes(content)
    got, want = (one(tmp_path / "a.png", rows=rows).pixels for rows in (unfilter, None))
    assert shape is None or got.shape == shape
    np.testing.assert_array_equal(got, want)
    assert not is_plain(png(VALUES, (0,), interlaced=1)) and not is_plain(content[:20]) and not is_plain(b"")


def test_only_with_compiled_rows_pillow_is_not_asked(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(png(VALUES))
    asked, prepare = [], PngImagePlugin.PngImageFile.load_prepare
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load_prepare", lambda self: asked.append(1) or prepare(self))
    one(tmp_path / "a.png", rows=unfilter)
    assert not asked
    one(tmp_path / "a.png")
    assert asked


@pytest.mark.parametrize("rows", [None, unfilter])
@pytest.mark.parametrize("cut", [60, 200, 1500])
def test_a_png_that_is_cut_short_is_named(cut, rows, tmp_path):
    content = png(np.random.default_rng(0).integers(0, 256, (40, 31, 3), np.uint8))
    (tmp_path / "a.png").write_bytes(content[:cut])
    with pytest.raises(UnreadablePicture, match=r"a\.png' cannot be read: .*(truncated|cut short)"):
        one(tmp_path / "a.png", rows=rows)


def test_a_filter_that_there_is_not_is_named():
    content = png(np.ones((2, 2, 3), np.uint16), (0,))
    start = content.index(b"IDAT") + 4
    packed = bytearray(zlib.decompress(content[start:-16]))
    packed[13] = 5
    bad = content[: start - 8] + chunk(b"IDAT", zlib.compress(bytes(packed))) + content[-12:]
    with pytest.raises(ValueError, match="a row has the filter 5"):
        read_png(bad)


@pytest.mark.parametrize(
    ("mode", "suffix", "channels", "dtype"),
    [
        ("L", ".png", 1, "uint8"), ("L", ".jpg", 1, "uint8"), ("RGB", ".png", 3, "uint8"), ("RGB", ".jpg", 3, "uint8"),
        ("RGBA", ".png", 3, "uint8"), ("LA", ".png", 1, "uint8"), ("P", ".png", 3, "uint8"), ("1", ".png", 1, "uint8"),
        ("I;16", ".png", 1, "uint16"), ("L", ".tif", 1, "uint8"), ("RGB", ".tif", 3, "uint8"),
        ("RGBA", ".tif", 3, "uint8"),
        ("I;16", ".tif", 1, "uint16"), ("F", ".tif", 1, "float32"), ("P", ".tif", 3, "uint8"),
        ("1", ".tif", 1, "uint8"),
        ("RGB", ".bmp", 3, "uint8"),
    ],
)  # fmt: skip
def test_every_mode_gives_grey_or_colour(tmp_path, mode, suffix, channels, dtype):
    grey = np.zeros((20, 24), np.uint8)
    grey[:, 12:] = 255
    image = Image.fromarray(grey).convert("RGB" if mode in ("P", "RGBA", "LA") else "L")
    image = Image.fromarray(grey.astype(np.uint16) * 257) if mode == "I;16" else image.convert(mode)
    image.save(tmp_path / f"a{suffix}")
    got = one(tmp_path / f"a{suffix}").pixels
    assert got.shape == (20, 24, channels) and got.dtype == dtype
    full = 65535 if mode == "I;16" else 255
    assert got[:, :8].max() <= 0.02 * full and got[:, 16:].min() >= 0.98 * full


def test_white_is_zero_is_turned_round(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(tmp_path / "a.tif", np.full((4, 4), 250, np.uint8), photometric="miniswhite")
    assert (one(tmp_path / "a.tif").pixels == 5).all()


@pytest.mark.parametrize("predictor", [False, True])
@pytest.mark.parametrize("kind", ["grey", "grey 16", "colour"])
def test_lzw_is_unpacked_to_the_very_samples(tmp_path, kind, predictor):
    random = np.random.default_rng(0)
    shape = {"grey": (40, 50), "grey 16": (40, 50), "colour": (40, 50, 3)}[kind]
    want = random.integers(0, 40_000 if kind == "grey 16" else 256, (2, *shape)).astype("u2" if "16" in kind else "u1")
    path = tmp_path / "a.tif"
    pages = [Image.fromarray(page) for page in want]
    pages[0].save(path, save_all=True, append_images=pages[1:], compression="tiff_lzw", tiffinfo={317: 1 + predictor})
    for page, got in zip(want, read_pictures(path), strict=True):
        np.testing.assert_array_equal(got.pixels, np.atleast_3d(page))


def test_lzw_of_colour_with_16_bits_keeps_them_all(tmp_path):
    """Pillow itself makes 8 bits of such a file, so it is given the bytes alone: here they were packed as grey ones."""
    want = np.random.default_rng(0).integers(0, 60_000, (150, 100, 3)).astype(np.uint16)
    path = tmp_path / "a.tif"
    Image.fromarray(want.view(np.uint8).reshape(150, -1)).save(path, compression="tiff_lzw", tiffinfo={277: 1, 278: 16})
    content = bytearray(path.read_bytes())
    (start,) = struct.unpack_from("<I", content, 4)
    three = {256: (4, 1, 100), 258: (3, 3, len(content)), 262: (3, 1, 2), 277: (3, 1, 3)}
    for entry in range(start + 2, start + 2 + 12 * struct.unpack_from("<H", content, start)[0], 12):
        (tag,) = struct.unpack_from("<H", content, entry)
        if tag in three:
            struct.pack_into("<HII", content, entry + 2, *three[tag])
    path.write_bytes(content + struct.pack("<3H", 16, 16, 16))
    np.testing.assert_array_equal(one(path).pixels, want)


@pytest.mark.parametrize("order", ["<", ">"])
def test_grey_of_16_bits_is_read_in_any_compression_that_pillow_knows(tmp_path, order):
    samples = np.random.default_rng(0).integers(0, 60_000, (40, 50)).astype(np.uint16)
    path = tmp_path / "a.tif"
    pytest.importorskip("tifffile").imwrite(path, samples, byteorder=order, compression="lzma")
    found = one(path).pixels
    np.testing.assert_array_equal(found[..., 0], samples)
    assert found.dtype == np.uint16
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(UnreadablePicture, match=r"it is cut short: bytes .* of 2000"):
        one(path)


def test_a_cut_lzw_picture_is_an_error_wherever_it_is_cut(tmp_path):
    path, samples = tmp_path / "a.tif", np.random.default_rng(0).integers(0, 256, (40, 50), np.uint8)
    Image.fromarray(samples).save(path, compression="tiff_lzw")
    content = path.read_bytes()
    for length in range(8, len(content) - 1, 97):
        try:
            (found,) = pictures_in(content[:length], path)
        except UnreadablePicture:
            continue
        np.testing.assert_array_equal(found.pixels[..., 0], samples)


@pytest.mark.parametrize(("extra", "is_read"), [("unassalpha", True), ("assocalpha", True), ("unspecified", False)])
def test_a_second_grey_channel_is_dropped_only_if_it_is_alpha(tmp_path, extra, is_read):
    """Two stains of one microscope would else lose the second without a word."""
    tifffile = pytest.importorskip("tifffile")
    samples = np.random.default_rng(0).integers(0, 60_000, (20, 30, 2)).astype(np.uint16)
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, samples, photometric="minisblack", planarconfig="contig", extrasamples=[extra])
    if is_read:
        np.testing.assert_array_equal(one(path).pixels, samples[..., :1])
        return
    with pytest.raises(UnreadablePicture, match=r"a\.tif.*2 channels, neither of which is said to be alpha"):
        one(path)


def pyramid(path, *pages):
    """Pages in one chain, as slide scanners and preview makers write them: the picture, and what belongs to it."""
    tifffile = pytest.importorskip("tifffile")
    with tifffile.TiffWriter(path) as file:
        for pixels, kind in pages:
            kinds = {"photometric": "mask" if kind & 4 else "minisblack", "subfiletype": kind}
            file.write(pixels, **kinds, metadata=None)


def test_smaller_copies_and_masks_are_no_pictures(tmp_path):
    """Their objects were counted once more in each of them."""
    whole = np.arange(64 * 48, dtype=np.uint16).reshape(48, 64)
    half, quarter, mask = whole[::2, ::2], whole[::4, ::4], np.full((48, 64), True)
    pyramid(tmp_path / "slide.tif", (whole, 0), (half, 1), (quarter, 1), (mask, 4), (half > 9, 5))
    (one,) = read_pictures(tmp_path / "slide.tif")
    assert (one.name, one.page, one.num_pages) == ("slide", None, 1)
    np.testing.assert_array_equal(one.pixels[..., 0], whole)
    np.testing.assert_array_equal(numbers_in((tmp_path / "slide.tif").read_bytes(), Path("slide.tif"))[..., 0], whole)
    pyramid(tmp_path / "two.tif", (whole, 2), (half, 1), (whole + 1, 2), (half, 1))
    found = list(read_pictures(tmp_path / "two.tif"))
    assert [(p.name, p.num_pages) for p in found] == [("two_page0000", 2), ("two_page0002", 2)]
    np.testing.assert_array_equal(found[1].pixels[..., 0], whole + 1)


def test_pages_that_are_called_smaller_and_are_not_are_pictures(tmp_path):
    whole = np.arange(64 * 48, dtype=np.uint16).reshape(48, 64)
    pyramid(tmp_path / "a.tif", (whole, 1), (whole, 1))
    pyramid(tmp_path / "b.tif", (whole, 0), (whole, 1))
    for name in ("a.tif", "b.tif"):
        assert [p.page for p in read_pictures(tmp_path / name)] == [0, 1]


def test_pages_are_pictures_with_names(tmp_path):
    pages = [Image.new("L", (8, 6), n) for n in range(3)]
    pages[0].save(tmp_path / "stack.tif", save_all=True, append_images=pages[1:])
    got = list(read_pictures(tmp_path / "stack.tif"))
    assert [(p.name, p.page, int(p.pixels.max())) for p in got] == [
        ("stack_page0000", 0, 0), ("stack_page0001", 1, 1), ("stack_page0002", 2, 2)
    ]  # fmt: skip
    pages[2].save(tmp_path / "single.tif")
    assert one(tmp_path / "single.tif").name == "single"


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_stack_of_imagej_with_one_header_is_read_whole(tmp_path, order):
    """As ImageJ writes it where a stack does not fit the format; the other pages were lost without a word."""
    tifffile = pytest.importorskip("tifffile")
    want = np.random.default_rng(0).integers(0, 60000, (3, 6, 8), dtype=np.uint16)
    tifffile.imwrite(tmp_path / "a.tif", want, imagej=True, truncate=True, byteorder=order)
    with Image.open(tmp_path / "a.tif") as opened:
        assert opened.n_frames == 1
    found = list(read_pictures(tmp_path / "a.tif"))
    assert [(p.page, p.num_pages) for p in found] == [(0, 3), (1, 3), (2, 3)]
    np.testing.assert_array_equal(np.stack([p.pixels[..., 0] for p in found]), want)
    (tmp_path / "a.tif").write_bytes((tmp_path / "a.tif").read_bytes()[:-30])
    heard = []
    assert len(list(read_pictures(tmp_path / "a.tif", hear=heard.append))) == 2
    assert "page 2" in str(heard[0]) and "cut short" in str(heard[0])


def test_jpeg_in_tiff_is_read_by_pillow_and_turned_once(tmp_path):
    values = np.zeros((16, 48, 3), np.uint8)
    values[:, 40:, 0] = 250
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(values).save(tmp_path / "a.tif", compression="jpeg", exif=exif)
    got = one(tmp_path / "a.tif").pixels
    assert got.shape == (48, 16, 3) and got[42:, :, 0].min() > 200 and got[:30].max() < 60


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_pictures_are_turned_as_they_are_meant_to_be_seen(tmp_path, orientation, suffix):
    values = np.arange(48, dtype=np.uint8).reshape(6, 8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(values)
    for ending in (".png", suffix):
        image.save(tmp_path / f"a{ending}", exif=exif)
    with Image.open(tmp_path / "a.png") as opened:
        want = np.asarray(ImageOps.exif_transpose(opened))
    np.testing.assert_array_equal(one(tmp_path / f"a{suffix}").pixels[..., 0], want)
    assert want.shape == ((8, 6) if orientation > 4 else (6, 8))


def bad(folder, kind):
    good = np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8)
    path = folder / "a.png"
    Image.fromarray(good).save(path)
    content = path.read_bytes()
    frames = [Image.new("RGB", (8, 8), (n, n, n)) for n in (1, 99)]
    if kind == "text":
        path.write_text("<html>not found</html>")
    elif kind == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "animated":
        frames[0].save(path, save_all=True, append_images=frames[1:])
    elif kind == "animated gif":
        frames[0].save(path, "GIF", save_all=True, append_images=frames[1:])
    elif kind == "vast gif":
        frames[0].save(path, "GIF")
        content = path.read_bytes()
        at = content.rindex(struct.pack("<BHHHH", ord(","), 0, 0, 8, 8))
        path.write_bytes(content[: at + 5] + b"\xff" * 4 + content[at + 9 :])
    elif kind == "cmyk":
        Image.fromarray(good).convert("CMYK").save(path, "JPEG")
    elif kind == "cmyk tiff":
        Image.fromarray(good).convert("CMYK").save(path, "TIFF")
    elif kind == "lab tiff":
        Image.fromarray(good).convert("LAB").save(path, "TIFF")
    elif kind == "nan":
        path.write_bytes(write_tiff(np.where(good[..., 0] > 250, np.nan, 1).astype(np.float32)))
    elif kind == "infinite":
        path.write_bytes(write_tiff(np.full((3, 3), np.inf)))
    elif kind == "missing":
        path.unlink()
    elif kind == "truncated tiff":
        path.write_bytes(write_tiff(good)[:2000])
    elif kind == "truncated 16 bit":
        path.write_bytes(png(good.astype(np.uint16))[:300])
    elif kind == "damaged 16 bit":
        content = bytearray(png(good.astype(np.uint16)))
        content[200] ^= 255
        path.write_bytes(content)
    elif kind == "unknown 16 bit":
        pytest.importorskip("tifffile").imwrite(path, good.astype(np.uint16), photometric="rgb", compression="lzma")
    elif kind == "no page":
        path.write_bytes(b"II*\0" + bytes(4))
    elif kind == "complex tiff":
        pytest.importorskip("tifffile").imwrite(path, good[..., 0].astype(np.complex64))
    elif kind == "no pixels":
        header = struct.pack(">IIBBBBB", 0, 5, 8, 2, 0, 0, 0)
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b""))
    elif kind == "five channels":
        path.write_bytes(write_tiff(np.zeros((4, 4, 5), np.uint8)))
    elif kind == "truncated webp":
        Image.fromarray(good).save(path, "WEBP")
        path.write_bytes(path.read_bytes()[:-20])
    elif kind == "interlaced 16 bit":
        header = struct.pack(">IIBBBBB", 50, 40, 16, 2, 0, 0, 1)
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b""))
    return path


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("text", "no known picture format"), ("truncated", ""), ("empty", "the file is empty"),
        ("animated", "animated: 2 frames"), ("animated gif", "animated: 2 frames"), ("cmyk", "CMYK"),
        ("vast gif", r"4294836225 pixels\) exceeds limit"),
        ("cmyk tiff", "CMYK"), ("lab tiff", "its colours are LAB"),
        ("nan", "of its 2000 numbers are NaN"), ("infinite", "9 of its 9 numbers"),
        ("missing", "No such file"), ("truncated tiff", "cut short"), ("truncated 16 bit", ""),
        ("damaged 16 bit", "its compressed data are damaged"),
        ("unknown 16 bit", "compression 34925 is not read with 16 bits"),
        ("five channels", "5 channels, not 1 or 3"), ("no page", "it has no page"),
        ("complex tiff", "its samples of 64 bits are not read"), ("no pixels", "its PNG header is damaged"),
        ("truncated webp", "its WEBP data are cut short or damaged: could not"),
        ("interlaced 16 bit", "interlaced PNG of 16 bits; save it without"),
    ],
)  # fmt: skip
def test_a_bad_file_is_named_with_its_reason(tmp_path, kind, reason):
    with pytest.raises(UnreadablePicture, match=rf"a.png' cannot be read: .*{reason}"):
        one(bad(tmp_path, kind))


def test_a_microscope_s_own_format_is_named_with_what_to_do(tmp_path):
    (tmp_path / "a.czi").write_bytes(b"ZISRAWFILE")
    with pytest.raises(UnreadablePicture, match=r"a.czi' cannot be read: no known picture format; save it as TIFF"):
        one(tmp_path / "a.czi")
    slide = tmp_path / "slide.SVS"  # levels of a pyramid, which would be pictures of their own
    slide.write_bytes(write_tiff(np.zeros((4, 4), np.uint8)))
    with pytest.raises(UnreadablePicture, match=r"slide.SVS' cannot be read: .* own kind of TIFF; save .* plain TIFF"):
        one(slide)


def test_too_many_pixels_are_refused_before_decoding(tmp_path):
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b""))
    with pytest.raises(UnreadablePicture, match=r"a.png' cannot be read: 60000x60000 pixels are more than most_pixels"):
        one(tmp_path / "a.png")
    (tmp_path / "b.tif").write_bytes(write_tiff(np.zeros((30, 40), np.uint8)))
    with pytest.raises(UnreadablePicture, match="40x30 pixels are more than most_pixels = 1000"):
        one(tmp_path / "b.tif", most_pixels=1000)
    assert one(tmp_path / "b.tif", most_pixels=1200).pixels.shape == (30, 40, 1)


def test_one_pixel_and_a_very_wide_picture_are_read(tmp_path):
    Image.new("L", (1, 1), 7).save(tmp_path / "a.png")
    assert one(tmp_path / "a.png").pixels.tolist() == [[[7]]]
    Image.new("L", (60_000, 3), 7).save(tmp_path / "b.png")
    assert one(tmp_path / "b.png").pixels.shape == (3, 60_000, 1)
