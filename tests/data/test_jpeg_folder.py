from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from hotlap.base.errors import ConfigError, StorageError
from hotlap.data import jpeg_folder
from hotlap.data.class_folder import read_class_folder
from hotlap.data.jpeg_folder import JpegRecipe, cached_jpeg_folder, write_jpeg_folder

Image = pytest.importorskip("PIL.Image", reason="writing images needs Pillow")
RECIPE = JpegRecipe(classes=3, train_images=25, eval_images=7, side=32)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.jpg")}


def test_a_drawn_folder_reads_as_a_class_folder(tmp_path):
    write_jpeg_folder(tmp_path, RECIPE)
    found = read_class_folder(tmp_path, hold_out=2)
    assert found.classes == ["disc", "ring", "square"]
    assert Counter(found.train.labels) == {0: 9, 1: 8, 2: 8} and Counter(found.evaluation.labels) == {0: 3, 1: 2, 2: 2}
    sizes = set()
    for path in found.train.paths + found.evaluation.paths:
        with Image.open(path) as image:
            assert (image.format, image.mode) == ("JPEG", "RGB")
            sizes.add(image.size)
    assert sizes == {(32, 32), (32, 24), (24, 32), (32, 21)}


def test_the_seed_alone_decides_the_files(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_jpeg_folder(tmp_path / name, JpegRecipe(classes=2, train_images=4, eval_images=2, side=32, seed=seed))
    first, again, other = (contents(tmp_path / name) for name in "abc")
    assert len(first) == 6 and first == again and first != other
    assert len(set(first.values())) == 6, "no picture is there twice"


def test_the_cache_is_filled_once(tmp_path, monkeypatch):
    folder = cached_jpeg_folder(RECIPE, tmp_path)
    assert folder == tmp_path / RECIPE.key and len(contents(folder)) == 32
    monkeypatch.setattr(jpeg_folder, "write_jpeg_folder", lambda *_: pytest.fail("drawn again"))
    assert cached_jpeg_folder(RECIPE, tmp_path) == folder


def test_the_cache_is_where_the_user_keeps_caches(tmp_path):
    assert jpeg_folder.jpeg_cache({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "hotlap" / "jpeg"


def test_different_recipes_do_not_share_a_folder():
    recipes = [RECIPE, JpegRecipe(), JpegRecipe(seed=1), JpegRecipe(side=300), JpegRecipe(quality=50)]
    assert len({recipe.key for recipe in recipes}) == len(recipes)


def test_what_a_killed_process_left_is_cleared_away(tmp_path, monkeypatch):
    left = tmp_path / f"{RECIPE.key}.building"
    (left / "train" / "wrong").mkdir(parents=True)
    folder = cached_jpeg_folder(RECIPE, tmp_path)
    assert not left.exists() and not (folder / "train" / "wrong").exists() and len(contents(folder)) == 32


def test_an_interrupted_drawing_leaves_no_folder(tmp_path, monkeypatch):
    def half(folder, recipe):
        (folder / "train").mkdir(parents=True)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(jpeg_folder, "write_jpeg_folder", half)
        cached_jpeg_folder(RECIPE, tmp_path)
    assert not (tmp_path / RECIPE.key).exists()
    assert len(contents(cached_jpeg_folder(RECIPE, tmp_path))) == 32


def test_those_who_come_together_all_see_the_whole_folder(tmp_path):
    """The lock belongs to the open file, so threads stand for processes here."""
    with ThreadPoolExecutor(3) as pool:
        folders = list(pool.map(lambda _: len(contents(cached_jpeg_folder(RECIPE, tmp_path))), range(3)))
    assert folders == [32, 32, 32]
    assert {path.name for path in tmp_path.iterdir()} == {RECIPE.key, f"{RECIPE.key}.lock"}


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    def full(folder, recipe):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(jpeg_folder, "write_jpeg_folder", full)
    with pytest.raises(StorageError, match=rf"{tmp_path.name}': .*No space left.*XDG_CACHE_HOME"):
        cached_jpeg_folder(RECIPE, tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 1}, "classes = 1 cannot be drawn.*2 to 10"),
        ({"classes": 11}, "classes = 11"),
        ({"train_images": 9}, "train_images = 9 is too few.*at least 10"),
        ({"eval_images": 3}, "eval_images = 3"),
    ],
)
def test_bad_recipes_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        JpegRecipe(**options)
