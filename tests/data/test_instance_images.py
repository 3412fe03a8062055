"""Images with numbered objects, from a folder or a packed file; and drawn ones."""

from __future__ import annotations

import numpy as np
import pytest

from hotlap.base.errors import ConfigError, DataError, StorageError
from hotlap.data.drawn_cells import draw_cells
from hotlap.data.instance_images import find_images, pack_images, split_images
from hotlap.data.micrograph import read_pictures
from hotlap.data.tiff import write_tiff
from hotlap.segment.normalise import normalise

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def folder(tmp_path):
    random = np.random.default_rng(0)
    for part in ("images", "labels"):
        (tmp_path / part).mkdir()
    for number in range(6):
        image = random.integers(0, 255, (8, 10, 3), np.uint8)
        label = random.integers(0, 700, (8, 10)).astype(np.uint16)
        Image.fromarray(image).save(tmp_path / "images" / f"cell{number}.png")
        Image.fromarray(label).save(tmp_path / "labels" / f"cell{number}.png")
    return tmp_path


def test_a_packed_file_holds_what_the_folder_does(folder, tmp_path):
    packed = tmp_path / "cells.npz"
    assert pack_images(folder, packed) == 6
    ours, theirs = find_images(folder), find_images(packed)
    assert [image.name for image in ours] == [image.name for image in theirs] == [f"cell{n}" for n in range(6)]
    for mine, other in zip(ours, theirs, strict=True):
        for a, b in zip(mine.read(), other.read(), strict=True):
            assert (a == b).all()
    image, labels = ours[0].read()
    assert image.shape == (8, 10, 3) and labels.dtype == np.int32 and labels.max() > 255
    train, held_out = split_images(theirs)
    assert [i.name for i in held_out] == ["cell0", "cell5"] and len(train) == 4


def test_a_label_of_another_size_is_named(folder):
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(folder / "labels" / "cell1.png")
    with pytest.raises(DataError, match=r"label of 'cell1' is 4x4 pixels.*10x8"):
        find_images(folder)[1].read()


@pytest.mark.parametrize("kind", ["dim 16 bits", "16 bits in colour", "floats below 1", "32 bits"])
def test_images_are_learned_from_as_prediction_sees_them(folder, kind):
    """Scaled down to bytes before they are stretched, these had 6 levels of grey, or were black."""
    values = np.random.default_rng(1).integers(0, 2048, (8, 10, 3))
    stored = {
        "dim 16 bits": values[..., 0].astype(np.uint16), "16 bits in colour": values.astype(np.uint16),
        "floats below 1": (values[..., 0] / 4096).astype(np.float32), "32 bits": values[..., 0].astype(np.int32) * 1000,
    }[kind]  # fmt: skip
    (folder / "images" / "cell1.png").unlink()
    path = folder / "images" / "cell1.tif"
    path.write_bytes(write_tiff(stored))
    seen = normalise(find_images(folder)[1].read()[0])
    assert len(np.unique(seen)) > 40
    np.testing.assert_array_equal(seen, normalise(next(read_pictures(path)).pixels))


def test_webp_is_read(folder):
    (folder / "images" / "cell1.png").unlink()
    Image.new("RGB", (10, 8), (9, 99, 200)).save(folder / "images" / "cell1.webp", lossless=True)
    assert find_images(folder)[1].read()[0][3, 3].tolist() == [9, 99, 200]


@pytest.mark.parametrize("part", ["image", "label"])
def test_a_stack_of_pages_is_named(folder, part):
    (folder / f"{part}s" / "cell1.png").unlink()
    pages = [Image.new("L", (10, 8), n) for n in range(3)]
    pages[0].save(folder / f"{part}s" / "cell1.tif", save_all=True, append_images=pages[1:])
    with pytest.raises(DataError, match=rf"{part} of 'cell1' .*cell1\.tif.* cannot be read: it has 3 pages"):
        find_images(folder)[1].read()


@pytest.mark.parametrize("value", [0.5, np.nan, np.inf, 2**32 + 1, -1, -1.0])
def test_a_label_that_numbers_nothing_is_named(folder, value):
    (folder / "labels" / "cell1.png").unlink()
    kind = np.int64 if isinstance(value, int) else np.float32
    (folder / "labels" / "cell1.tif").write_bytes(write_tiff(np.full((8, 10), value, kind)))
    with pytest.raises(DataError, match=f"label of 'cell1' has numbers such as {value}.*whole numbers"):
        find_images(folder)[1].read()


@pytest.mark.parametrize(
    "kind", [np.uint8, np.uint16, np.uint32, np.int32, np.int64, np.uint64, np.float32, np.float64]
)
def test_labels_of_every_kind_of_number_are_read(folder, kind):
    """Whole numbers of 64 bits are what scikit-image numbers objects with, and Pillow does not know them in a TIFF."""
    want = np.random.default_rng(2).integers(0, 200, (8, 10))
    (folder / "labels" / "cell1.png").unlink()
    (folder / "labels" / "cell1.tif").write_bytes(write_tiff(want.astype(kind)))
    np.testing.assert_array_equal(find_images(folder)[1].read()[1], want)


@pytest.mark.parametrize("value", [1, 255])
def test_a_mask_in_black_and_white_is_named(folder, value):
    """It was read as one object, so that touching and separate cells alike were learned as one."""
    mask = np.zeros((8, 10), np.uint8)
    mask[::2, ::3] = value
    Image.fromarray(mask).save(folder / "labels" / "cell1.png")
    with pytest.raises(DataError, match=rf"label of 'cell1' has the one number {value} in 16 separate parts.*no mask"):
        find_images(folder)[1].read()


@pytest.mark.parametrize("cut", [(), (3,), (2, 5)])
def test_an_only_object_may_lie_in_pieces(folder, cut):
    label = np.zeros((8, 10), np.uint8)
    label[:, 4] = 7
    label[list(cut)] = 0
    Image.fromarray(label).save(folder / "labels" / "cell1.png")
    assert find_images(folder)[1].read()[1].max() == 7


@pytest.mark.parametrize("mode", ["P", "LA", "RGBA", "1"])
def test_labels_of_every_mode_are_read(folder, mode):
    want = np.random.default_rng(2).integers(0, 2 if mode == "1" else 200, (8, 10)).astype(np.uint8)
    label = Image.fromarray(want) if mode != "1" else Image.fromarray(want.astype(bool))
    if mode == "P":
        label.putpalette(np.random.default_rng(3).integers(0, 255, 768, np.uint8).tobytes())
    elif mode != "1":
        label = label.convert(mode)
    assert label.mode == mode
    label.save(folder / "labels" / "cell1.png")
    np.testing.assert_array_equal(find_images(folder)[1].read()[1], want)


def test_a_colour_label_is_named(folder):
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (8, 10, 3), np.uint8)).save(folder / "labels/cell1.png")
    with pytest.raises(DataError, match="label of 'cell1' has 3 channels"):
        find_images(folder)[1].read()


def test_a_label_whose_format_changes_numbers_is_named(folder):
    """It was scored and learned from: around each object others had come to be, of a few pixels."""
    label = np.zeros((8, 10), np.uint8)
    label[2:6, 3:5], label[2:6, 6:8] = 9, 70
    Image.fromarray(label).save(folder / "labels" / "cell1.png", "JPEG")
    with pytest.raises(DataError, match=r"label of 'cell1' .*cell1\.png. cannot be read: it is a JPEG, which changes"):
        find_images(folder)[1].read()


@pytest.mark.parametrize("part", ["image", "label"])
@pytest.mark.parametrize("content", [b"", b"no picture", b"II*\0\0\0\0\0", None])
def test_a_damaged_file_is_named(folder, content, part):
    path = folder / f"{part}s" / "cell2.png"
    path.write_bytes(path.read_bytes()[:-30] if content is None else content)
    with pytest.raises(DataError, match=rf"{part} of 'cell2' .*cell2\.png. cannot be read"):
        find_images(folder)[2].read()


def test_packed_files_that_cannot_serve_are_named(folder, tmp_path):
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(DataError, match=r"broken\.npz' cannot be read"):
        find_images(broken)
    whole = tmp_path / "whole.npz"
    np.savez_compressed(whole, **{f"image:{n}": np.random.default_rng(n).integers(4, size=9_999) for n in range(5)})
    content = bytearray(whole.read_bytes())
    content[500:520] = b"\xff" * 20
    broken.write_bytes(content)
    with pytest.raises(DataError, match=r"broken\.npz' cannot be read: Error -3 while decompressing"):
        find_images(broken)
    with broken.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match=r"broken\.npz' cannot be read: it is no npz file, or is cut short\. Pack"):
        find_images(broken)
    with pytest.raises(DataError, match=r"gone\.npz' cannot be read: .*No such file"):
        find_images(tmp_path / "gone.npz")
    np.savez(tmp_path / "few.npz", **{"image:a": np.zeros(3, np.uint8), "label:a": np.zeros(3, np.uint8)})
    with pytest.raises(DataError, match=r"few\.npz' holds 1 images"):
        find_images(tmp_path / "few.npz")
    np.savez(tmp_path / "half.npz", **{"image:a": np.zeros(3, np.uint8)})
    with pytest.raises(DataError, match=r"half\.npz' holds no label for 'a'"):
        find_images(tmp_path / "half.npz")
    with pytest.raises(StorageError, match=r"missing/cells\.npz"):
        pack_images(folder, tmp_path / "missing" / "cells.npz")


def test_drawn_cells_touch_and_are_numbered():
    image, labels = draw_cells(3, size=96, seed=0)
    assert image.shape == (96, 96, 3) and labels.shape == (96, 96)
    beside = (labels[:, 1:] != labels[:, :-1]) & (labels[:, 1:] > 0) & (labels[:, :-1] > 0)
    assert len(np.unique(labels)) > 4 and beside.any()
    assert 0.05 < (labels > 0).mean() < 0.6
    again, other = draw_cells(3, size=96, seed=0)[0], draw_cells(4, size=96, seed=0)[0]
    assert (again == image).all() and (other != image).any()
    for index in range(20):
        assert draw_cells(index, size=32, seed=1)[1].any()
    with pytest.raises(ConfigError, match="size = 8 "):
        draw_cells(0, size=8, seed=0)
