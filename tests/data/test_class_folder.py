import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotlap.base.errors import DataError
from hotlap.data.class_folder import read_class_folder


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def short(files, folder):
    return [os.path.relpath(path, folder) for path in files.paths]


def test_classes_and_pictures_stand_in_the_order_of_their_names(tmp_path):
    touch(tmp_path, "dog/b.JPG", "dog/a.jpeg", "cat/x/deep/z.png", "cat/y.webp", "cat/notes.txt", "cat/.hidden.jpg")
    touch(tmp_path, ".cache/a.jpg", "README.md")
    found = read_class_folder(tmp_path, hold_out=2)
    assert found.classes == ["cat", "dog"]
    assert short(found.evaluation, tmp_path) == ["cat/x/deep/z.png", "dog/a.jpeg"]
    assert short(found.train, tmp_path) == ["cat/y.webp", "dog/b.JPG"]
    assert found.train.labels == found.evaluation.labels == [0, 1]


@pytest.mark.parametrize("name", ["val", "valid", "validation", "eval", "test"])
def test_a_folder_to_judge_by_is_taken_whole(tmp_path, name):
    touch(tmp_path, "train/a/1.jpg", "train/a/2.jpg", "train/b/1.jpg", f"{name}/a/1.jpg", f"{name}/b/1.jpg")
    found = read_class_folder(tmp_path, hold_out=2)
    assert short(found.train, tmp_path) == ["train/a/1.jpg", "train/a/2.jpg", "train/b/1.jpg"]
    assert short(found.evaluation, tmp_path) == [f"{name}/a/1.jpg", f"{name}/b/1.jpg"]
    assert (found.train.labels, found.evaluation.labels) == ([0, 0, 1], [0, 1])


def test_train_alone_is_split_and_val_goes_before_test(tmp_path):
    touch(tmp_path, *(f"train/{c}/{i}.jpg" for c in "ab" for i in range(3)))
    found = read_class_folder(tmp_path, hold_out=3)
    assert short(found.evaluation, tmp_path) == ["train/a/0.jpg", "train/b/0.jpg"]
    touch(tmp_path, *(f"{split}/{c}/9.jpg" for split in ("test", "val") for c in "ab"))
    assert short(read_class_folder(tmp_path, hold_out=3).evaluation, tmp_path) == ["val/a/9.jpg", "val/b/9.jpg"]


def test_train_may_be_a_class_among_others(tmp_path):
    touch(tmp_path, *(f"{c}/{i}.jpg" for c in ("car", "plane", "train") for i in range(2)))
    assert read_class_folder(tmp_path, hold_out=2).classes == ["car", "plane", "train"]


@given(numbers=st.lists(st.integers(2, 9), min_size=2, max_size=4), hold_out=st.integers(2, 6))
def test_the_split_loses_and_doubles_nothing(tmp_path_factory, numbers, hold_out):
    folder = tmp_path_factory.mktemp("split")
    for number, count in enumerate(numbers):
        touch(folder, *(f"{number}/{i}.jpg" for i in range(count)))
    found, again = (read_class_folder(folder, hold_out=hold_out) for _ in range(2))
    assert found == again
    together = sorted(found.train.paths + found.evaluation.paths)
    assert len(set(together)) == len(together) == sum(numbers)
    for number, count in enumerate(numbers):
        assert found.evaluation.labels.count(number) == -(-count // hold_out)
        assert found.train.labels.count(number) >= 1


def test_links_are_followed_but_not_in_circles(tmp_path):
    touch(tmp_path, "elsewhere/1.jpg", "elsewhere/2.jpg", "data/a/1.jpg", "data/a/2.jpg")
    (tmp_path / "data/b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data/a/loop").symlink_to(tmp_path / "data/a")
    found = read_class_folder(tmp_path / "data", hold_out=2)
    assert found.classes == ["a", "b"] and len(found.train) + len(found.evaluation) == 4


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "has no class folders.*a folder for each class"),
        (["1.jpg", "2.jpg"], "has no class folders"),
        (["a/1.jpg", "a/2.jpg"], "has only the class 'a'.*at least two"),
        (["a/1.jpg", "a/2.jpg", "b/1.heic", "b/2.heic", "b/c"], "b' has no pictures but 2 of .heic, 1 of no suffix"),
        (["a/1.jpg", "a/2.jpg", "b/1.jpg"], "class 'b' has 1 picture, '.*b/1.jpg'.*at least 2"),
        (["train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg", "val/c/1.jpg"], "val' has no class 'b'.*the same classes"),
        (["train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg", "val/b/1.jpg", "val/c/1.jpg"], "train' has no class 'c'"),
        (["train/1.jpg", "val/a/1.jpg"], "train' has no class folders"),
    ],
)
def test_wrong_folders_are_named(tmp_path, files, message):
    touch(tmp_path, *files)
    with pytest.raises(DataError, match=message):
        read_class_folder(tmp_path, hold_out=2)


def test_an_empty_class_and_a_missing_folder_are_named(tmp_path):
    touch(tmp_path, "a/1.jpg", "a/2.jpg")
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match=r"b' has no pictures\. Expected files of"):
        read_class_folder(tmp_path, hold_out=2)
    with pytest.raises(DataError, match="nowhere' does not exist"):
        read_class_folder(tmp_path / "nowhere", hold_out=2)


@pytest.mark.parametrize("closed", ["", "b"])
def test_a_folder_that_may_not_be_read_is_named(tmp_path, monkeypatch, closed):
    touch(tmp_path, "a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.jpg")
    scandir = os.scandir

    def refuse(path):
        if os.path.realpath(path) == os.path.realpath(tmp_path / closed):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=rf"{closed}' cannot be read: Permission denied"):
        read_class_folder(tmp_path, hold_out=2)
