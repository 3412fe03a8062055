"""The pixels of views: backgrounds, masks, sizes, and pictures that are none."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import numpy as np
import pytest

from hotlap.base.errors import ConfigError, DataError
from hotlap.data.picture_file import UnreadablePicture
from hotlap.data.pinhole import Pinhole
from hotlap.data.scene import View, load_view
from hotlap.data.view_pixels import read_head

Image = pytest.importorskip("PIL.Image", reason="views are photographs")


def view_of(path, width=20, height=10, **fields) -> View:
    camera = Pinhole(width=width, height=height, fx=18.0, fy=19.0, cx=width / 2, cy=height / 2)
    return View(name=path.name, image=path, camera_from_world=np.eye(4), camera=camera, **fields)


def random_picture(width=20, height=10, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def test_pixels_are_the_files_own(tmp_path):
    values = random_picture()
    Image.fromarray(values).save(tmp_path / "a.png")
    loaded = load_view(view_of(tmp_path / "a.png"))
    np.testing.assert_array_equal(loaded.image, values)
    assert loaded.mask is None and loaded.camera == view_of(tmp_path / "a.png").camera


@pytest.mark.parametrize("background", [(255, 255, 255), (0, 0, 0), (10, 200, 30)])
def test_transparent_pixels_are_put_on_the_background(tmp_path, background):
    values = random_picture(channels=4)
    Image.fromarray(values).save(tmp_path / "a.png")
    alpha = values[..., 3:] / 255
    want = values[..., :3] * alpha + np.array(background) * (1 - alpha)
    got = load_view(view_of(tmp_path / "a.png", background=background)).image
    assert np.abs(got - want).max() <= 0.5 + 1e-9  # rounded once
    assert read_head(tmp_path / "a.png").transparent


@pytest.mark.parametrize("mode", ["LA", "P", "L", "RGB"])
def test_other_kinds_of_transparency(tmp_path, mode):
    """Grey with alpha, a palette and a plain picture with a see-through colour: what is see-through becomes white."""
    path = tmp_path / "a.png"
    if mode == "LA":
        Image.new("LA", (20, 10), (7, 0)).save(path)
    else:
        Image.new(mode, (20, 10), {"P": 0, "L": 7, "RGB": (7, 7, 7)}[mode]).save(
            path, transparency={"P": 0, "L": 7, "RGB": (7, 7, 7)}[mode]
        )
    assert (load_view(view_of(path, background=(255, 255, 255))).image == 255).all()


def test_max_side_scales_picture_and_camera_together(tmp_path):
    x = np.linspace(0, 255, 400)
    values = np.broadcast_to(x[None, :, None], (200, 400, 3)).astype(np.uint8)
    Image.fromarray(values).save(tmp_path / "a.jpg", quality=95)
    view = view_of(tmp_path / "a.jpg", 400, 200)
    loaded = load_view(view, max_side=50)
    assert loaded.image.shape == (25, 50, 3)
    assert (loaded.camera.width, loaded.camera.height, loaded.camera.fx) == (50, 25, 18.0 / 8)
    centres = (np.arange(50) + 0.5) / 50 * 255
    assert np.abs(loaded.image[12, 2:-2, 0] - centres[2:-2]).max() < 4  # JPEG and scaling of a ramp
    assert load_view(view, max_side=1000).image.shape == (200, 400, 3)
    with pytest.raises(ConfigError, match="max_side = 0 leaves no pixel"):
        load_view(view, max_side=0)


def test_pictures_are_not_turned(tmp_path):
    """COLMAP estimates cameras for the pixels as they are stored, whatever EXIF says of how to show them."""
    exif = Image.Exif()
    exif[0x0112] = 6
    values = random_picture()
    Image.fromarray(values).save(tmp_path / "a.png", exif=exif)
    head = read_head(tmp_path / "a.png")
    assert (head.width, head.height) == (20, 10)
    np.testing.assert_array_equal(load_view(view_of(tmp_path / "a.png")).image, values)


def test_a_view_of_another_size_than_its_file_is_scaled(tmp_path):
    Image.new("RGB", (40, 20), (9, 8, 7)).save(tmp_path / "a.png")
    loaded = load_view(view_of(tmp_path / "a.png"))
    assert loaded.image.shape == (10, 20, 3) and (loaded.image == [9, 8, 7]).all()


@pytest.mark.parametrize("kind", ["1", "L", "I;16", "RGB"])
def test_masks_are_true_where_they_are_not_black(tmp_path, kind):
    Image.fromarray(random_picture()).save(tmp_path / "a.png")
    want = np.random.default_rng(3).random((10, 20)) < 0.5
    if kind == "I;16":
        Image.fromarray(want.astype(np.uint16) * 300).save(tmp_path / "m.png")
    elif kind == "RGB":
        Image.fromarray(np.repeat(want[..., None].astype(np.uint8), 3, -1) * 255).save(tmp_path / "m.png")
    else:
        Image.fromarray(want if kind == "1" else want.astype(np.uint8)).save(tmp_path / "m.png")
    mask = load_view(view_of(tmp_path / "a.png", mask=tmp_path / "m.png")).mask
    assert mask.dtype == bool
    np.testing.assert_array_equal(mask, want)


def test_a_jpeg_mask_is_cut_at_the_middle_and_scaled_with_the_view(tmp_path):
    Image.fromarray(random_picture()).save(tmp_path / "a.png")
    half = np.zeros((40, 80), np.uint8)
    half[:, 48:] = 255
    Image.fromarray(half).save(tmp_path / "m.jpg")
    mask = load_view(view_of(tmp_path / "a.png", mask=tmp_path / "m.jpg"), max_side=10).mask
    assert mask.shape == (5, 10) and (mask == (np.arange(10) >= 6)).all()


def png_claiming(width: int, height: int) -> bytes:
    """A PNG whose header says so, with hardly any data."""

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(("width", "height"), [(20_000, 20_000), (12_000, 8_000)])
def test_a_picture_too_large_to_decode_is_refused_by_its_header(tmp_path, width, height):
    (tmp_path / "a.png").write_bytes(png_claiming(width, height))
    with pytest.raises(
        UnreadablePicture, match=r"a\.png' cannot be read: .*(400000000|12000x8000) .*MAX_IMAGE_PIXELS = 89478485\."
    ):
        read_head(tmp_path / "a.png")


def test_a_long_thin_picture_is_not_too_large(tmp_path):
    Image.new("L", (20_000, 2), 77).save(tmp_path / "a.png")
    loaded = load_view(view_of(tmp_path / "a.png", 20_000, 2), max_side=1000)
    assert loaded.image.shape == (1, 1000, 3) and (loaded.image == 77).all()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no known picture format"),
        (b"hello", "no known picture format"),
        (png_claiming(20, 10), "cannot be read"),
        (None, "No such file"),
    ],
)
def test_pictures_that_are_none_are_named(tmp_path, content, message):
    if content is not None:
        (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(
        UnreadablePicture, match=rf"a\.png' cannot be read.*{message}" if message[0] != "c" else message
    ):
        load_view(view_of(tmp_path / "a.png"))


def test_cameras_that_are_none_are_refused():
    good = {"width": 4, "height": 3, "fx": 2.0, "fy": 2.0, "cx": 2.0, "cy": 1.5}
    for change, message in (
        ({"width": 0}, "camera size = 0x3 is empty"),
        ({"fy": -1.0}, "fy = -1.0 is no focal length"),
        ({"cy": float("inf")}, "cy = inf is no place"),
    ):
        with pytest.raises(DataError, match=message):
            Pinhole(**good | change)


def test_a_part_that_claims_gigabytes_makes_no_room_for_them(tmp_path):
    path, pixels = tmp_path / "lying.png", random_picture()
    Image.fromarray(pixels).save(path)
    content = path.read_bytes()
    at = content.index(b"IDAT")
    path.write_bytes(content[: at - 4] + struct.pack(">I", 3_700_000_000) + content[at:])
    tracemalloc.start()
    try:
        loaded = load_view(view_of(path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000
    np.testing.assert_array_equal(loaded.image, pixels)
