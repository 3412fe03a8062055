"""Pictures of every mode come out as RGB over white, upright and square."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from hotlap.data.picture_file import PictureTooLarge, UnreadablePicture
from hotlap.data.white_picture import decode_white_picture, encode_gif, encode_jpeg, encode_png, read_white_picture

Image = pytest.importorskip("PIL.Image", reason="reading images needs Pillow")


def saved(path, image, **options):
    image.save(path, **options)
    return path


def test_transparent_pixels_become_white_and_half_transparent_ones_half_white(tmp_path):
    pixels = np.zeros((8, 8, 4), np.uint8)
    pixels[:, 4:] = (255, 0, 0, 255)
    pixels[:4, :4] = (0, 0, 0, 127)
    found = read_white_picture(saved(tmp_path / "a.png", Image.fromarray(pixels)), 8)
    assert found[:, 7, 0].tolist() == [255, 255, 255], "alpha 0, whatever colour lies under it"
    assert found[:, 0, 7].tolist() == [255, 0, 0]
    assert found[:, 0, 0].tolist() == [128, 128, 128]


def test_a_palette_with_transparency(tmp_path):
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 0, 0, 255])
    image.putpixel((0, 0), 0)
    found = read_white_picture(saved(tmp_path / "a.png", image, transparency=0), 4)
    assert (found[:, 0, 0].tolist(), found[:, 3, 3].tolist()) == ([255, 255, 255], [0, 0, 255])


def test_grey_and_16_bit_grey(tmp_path):
    grey = np.arange(0, 256, 16, dtype=np.uint8).reshape(4, 4)
    found = read_white_picture(saved(tmp_path / "a.png", Image.fromarray(grey)), 4)
    assert torch.equal(found, torch.from_numpy(grey).expand(3, 4, 4))
    deep = read_white_picture(saved(tmp_path / "b.png", Image.fromarray(grey.astype(np.uint16) * 257)), 4)
    assert (deep.int() - found.int()).abs().max() <= 1


@pytest.mark.parametrize("clear", [0, 65535])
def test_16_bit_grey_with_a_transparent_value(tmp_path, clear):
    deep = np.array([[0, 20000], [40000, 65535]], np.uint16)
    found = read_white_picture(saved(tmp_path / "a.png", Image.fromarray(deep), transparency=clear), 2)
    wanted = np.where(deep == clear, 255, deep // 257).astype(np.int64)
    assert (found.long() - torch.from_numpy(wanted)).abs().max() <= 1


def test_exif_turns_the_picture(tmp_path):
    pixels = np.full((6, 6, 3), 255, np.uint8)
    pixels[:3, :3] = 0
    exif = Image.Exif()
    exif[0x0112] = 6  # turned right by a quarter to be seen upright
    found = read_white_picture(saved(tmp_path / "a.png", Image.fromarray(pixels), exif=exif), 6)
    assert found[0, 0, 5] == 0 and found[0, 0, 0] == 255


def test_borders_are_white_and_the_middle_stays(tmp_path):
    wide = Image.fromarray(np.zeros((10, 20, 3), np.uint8))
    found = read_white_picture(saved(tmp_path / "a.png", wide), 20)
    assert (found[0] == 0).all(1).nonzero()[:, 0].tolist() == list(range(5, 15))
    assert (found[:, :5] == 255).all() and (found[:, 15:] == 255).all()


def test_scaling(tmp_path):
    found = read_white_picture(saved(tmp_path / "a.png", Image.new("RGB", (500, 500), (10, 20, 30))), 224)
    assert found.shape == (3, 224, 224) and found[:, 100, 100].tolist() == [10, 20, 30]


@pytest.mark.parametrize(
    ("content", "words"), [(b"", "the file is empty"), (b"text", "no known picture format"), (None, "No such file")]
)
def test_unreadable_pictures_are_named(tmp_path, content, words):
    path = tmp_path / "bad.png"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnreadablePicture, match=rf"bad\.png.*{words}"):
        read_white_picture(path, 8)


def test_a_picture_that_is_cut_short(tmp_path):
    saved(tmp_path / "a.png", Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)))
    with pytest.raises(UnreadablePicture, match=r"view 3"):
        decode_white_picture((tmp_path / "a.png").read_bytes()[:2000], 64, "view 3")


def test_what_is_encoded_can_be_decoded():
    picture = torch.full((16, 16, 3), 255, dtype=torch.uint8)
    picture[4:12, 4:12] = torch.tensor([200, 30, 60], dtype=torch.uint8)
    png = decode_white_picture(encode_png(picture), 16, "png")
    assert torch.equal(png.permute(1, 2, 0), picture)
    jpeg = decode_white_picture(encode_jpeg(picture), 16, "jpeg").permute(1, 2, 0)
    assert (jpeg.int() - picture.int()).abs().max() < 30
    gif = Image.open(io.BytesIO(encode_gif(torch.stack([picture, 255 - picture]))))
    assert (gif.n_frames, gif.size, gif.info["loop"]) == (2, (16, 16), 0)


def as_file(image, kind, **save):
    out = io.BytesIO()
    image.save(out, kind, **save)
    return out.getvalue()


def test_the_square_around_a_long_line_counts_as_its_pixels():
    line = as_file(Image.new("1", (9000, 1)), "PNG")
    with pytest.raises(PictureTooLarge, match="9000x1 pixels need a square of more than 64000000"):
        decode_white_picture(line, 8, "a.png", 64_000_000)
    bomb = as_file(Image.new("1", (60_000, 3_300)), "PNG")
    with pytest.raises(PictureTooLarge, match="198000000 pixels"):
        decode_white_picture(bomb, 8, "a.png", 64_000_000)


def test_several_frames_and_numbers_that_are_none_are_refused():
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    with pytest.raises(UnreadablePicture, match="it is animated: 2 frames"):
        decode_white_picture(as_file(frames[0], "GIF", save_all=True, append_images=frames[1:]), 8, "a.gif")
    nan = as_file(Image.fromarray(np.full((4, 4), np.nan, np.float32)), "TIFF")
    with pytest.raises(UnreadablePicture, match="it holds NaN or infinite pixels"):
        decode_white_picture(nan, 8, "a.tif")
