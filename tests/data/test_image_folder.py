from pathlib import Path

import numpy as np
import pytest
import torch

from hotlap.base.errors import DataError
from hotlap.data.image_folder import ImageFolder, find_pairs, split_pairs

Image = pytest.importorskip("PIL.Image", reason="reading images needs Pillow")


def save(path: Path, values: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)
    return path


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(6):
        save(tmp_path / f"images/p{number}.png", rng.integers(0, 256, (20, 30, 3), dtype=np.uint8))
        save(tmp_path / f"labels/p{number}.png", rng.integers(0, 3, (20, 30), dtype=np.uint8))
    return tmp_path


def read(folder, size=16, classes=3, label_kind="classes"):
    return ImageFolder(find_pairs(folder), size=size, classes=classes, label_kind=label_kind)


def test_every_fifth_is_held_out(folder):
    train, held_out = split_pairs(find_pairs(folder))
    assert [pair.image.stem for pair in held_out] == ["p0", "p5"]
    assert [pair.label.stem for pair in train] == ["p1", "p2", "p3", "p4"]


def test_items_are_resized_pixels_and_classes(folder):
    image, mask = read(folder)[2]
    assert image.shape == (3, 16, 16) and image.dtype == torch.float32 and 0 <= image.min() <= image.max() <= 1
    assert mask.shape == (16, 16) and mask.dtype == torch.int64 and set(mask.unique().tolist()) <= {0, 1, 2}


def test_nothing_changes_at_the_files_own_size(tmp_path):
    values = np.arange(5 * 16 * 16 * 3, dtype=np.uint8).reshape(5, 16, 16, 3)
    labels = (values[..., 0] % 4).astype(np.uint8)
    labels[labels == 3] = 255
    for number in range(5):
        save(tmp_path / f"images/{number}.png", values[number])
        save(tmp_path / f"labels/{number}.png", labels[number])
    image, mask = read(tmp_path)[3]
    assert torch.equal(image, torch.from_numpy(values[3]).permute(2, 0, 1) / 255)
    assert torch.equal(mask, torch.from_numpy(labels[3]).long())


def test_instances_become_foreground(folder):
    objects = np.zeros((20, 30), dtype=np.uint16)
    objects[5:10, 5:10], objects[12:, 20:] = 255, 4000
    save(folder / "labels/p0.png", objects)
    mask = read(folder, size=20, classes=2, label_kind="instances")[0][1]
    assert mask.unique().tolist() == [0, 1]
    with pytest.raises(DataError, match=r"p0.png' holds the value 4000.*label_kind=instances"):
        read(folder)[0]


def test_sixteen_bit_grey_keeps_its_brightness(folder):
    save(folder / "images/p0.png", np.full((20, 30), 32768, dtype=np.uint16))
    assert read(folder)[0][0].mean().item() == pytest.approx(0.5, abs=0.01)


def test_a_missing_partner_is_named(folder):
    (folder / "labels/p3.png").unlink()
    with pytest.raises(DataError, match=r"images/p3.png' has no label.*Add p3.png"):
        find_pairs(folder)
    (folder / "images/p3.png").rename(folder / "labels/p3.png")
    with pytest.raises(DataError, match=r"labels/p3.png' has no image"):
        find_pairs(folder)


def test_wrong_folders_are_named(folder, tmp_path_factory):
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(DataError, match="images' does not exist"):
        find_pairs(empty)
    (empty / "images").mkdir()
    (empty / "labels").mkdir()
    with pytest.raises(DataError, match="holds 0 images"):
        find_pairs(empty)
    save(folder / "images/p1.bmp", np.zeros((20, 30), dtype=np.uint8))
    with pytest.raises(DataError, match=r"p1.png' and 'p1.bmp' have the same stem"):
        find_pairs(folder)


def test_a_label_of_another_size_is_named(folder):
    save(folder / "labels/p0.png", np.zeros((20, 31), dtype=np.uint8))
    with pytest.raises(DataError, match=r"p0.png' is 31x20 pixels.*30x20"):
        read(folder)[0]


def test_an_unreadable_file_is_named(folder):
    whole = (folder / "images/p0.png").read_bytes()
    (folder / "images/p0.png").write_bytes(whole[: len(whole) // 2])
    (folder / "images/p1.png").write_text("not an image")
    for number in (0, 1):
        with pytest.raises(DataError, match=f"p{number}.png' cannot be read"):
            read(folder)[number]


def test_colour_labels_are_refused(folder):
    coloured = np.zeros((20, 30, 3), dtype=np.uint8)
    coloured[..., 1] = 7
    save(folder / "labels/p0.png", coloured)
    with pytest.raises(DataError, match=r"p0.png' is a colour image"):
        read(folder)[0]
