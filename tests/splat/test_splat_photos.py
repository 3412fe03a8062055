"""From plain photographs to a training: which stages are made, taken up again or refused."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import fake_pycolmap
import numpy as np
import pytest

from hotlap.base.errors import ConfigError, DataError, EnvironmentUnusable, StorageError, UnknownName, UsageError
from hotlap.base.events import ignore
from hotlap.cli.main import run
from hotlap.data.colmap import read_model
from hotlap.data.scene import read_scene
from hotlap.splat import motion
from hotlap.splat.photos import bring_photos, from_photos
from hotlap.splat.photos_config import SplatPhotosConfig
from hotlap.splat.trainer import Trainer

SHORT = {"sh_degree": 0, "strategy": "none", "log_every": 2, "pictures": 0}


@pytest.fixture
def colmap(monkeypatch, scene_folder):
    """The stand-in, whose mapping finds a small model and one of 14 pictures."""
    monkeypatch.setitem(sys.modules, "pycolmap", fake_pycolmap)
    fake_pycolmap.begin(scene_folder / "sparse" / "0", [5, 14, 3])
    return fake_pycolmap


@pytest.fixture
def asked(scene_folder, tmp_path):
    def make(**changes):
        given = {"folder": str(scene_folder / "images"), "out": str(tmp_path / "out"), "train": False, "device": "cpu"}
        return SplatPhotosConfig(**(given | changes))

    return make


def names(colmap):
    return [name for name, _ in colmap.calls]


def test_photographs_become_a_scene_and_a_training(colmap, asked, tmp_path):
    said = []
    found = from_photos(asked(train=True, steps=4, training=SHORT), lambda event: said.append(event.text))
    assert (found.photos, len(found.registered), found.points) == (16, 14, 400), "of three models the largest"
    assert list(found.seconds) == ["photographs", "features", "matches", "cameras"]
    assert found.record.status == "complete" and found.record.config["steps"] == 4
    assert found.record.config["sh_degree"] == 0
    assert (tmp_path / "out" / "model.ply").is_file()
    scene = read_scene(found.scene)
    assert len(scene.views) == 14 and scene.unused == ("view_014.png", "view_015.png")
    assert "cameras of 14 of 16 photographs, 400 points" in said
    kept = [path for part in ("scene", "photos") for path in (tmp_path / "out" / part).rglob("*")]
    assert [path for path in kept if path.name.startswith(".") or "left" in path.name] == [], "nothing half-made"


def test_colmap_is_asked_for_what_the_settings_say(colmap, asked):
    from_photos(asked(camera="OPENCV", max_side=300, max_features=99, seed=7))
    assert names(colmap) == ["extract", "exhaustive", "map"]
    given = dict(colmap.calls)
    assert given["extract"]["camera_mode"] is colmap.CameraMode.SINGLE, "all have the same size"
    assert given["extract"]["reader_options"].camera_model == "OPENCV"
    options = given["extract"]["extraction_options"]
    assert (options.max_image_size, options.sift.max_num_features, options.use_gpu) == (300, 99, False)
    assert given["extract"]["device"] is given["exhaustive"]["device"] is colmap.Device.cpu
    assert given["map"]["options"].random_seed == 7
    assert colmap.logging.minloglevel == 3


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"exhaustive_limit": 15}, "sequential"),
        ({"exhaustive_limit": 16}, "exhaustive"),
        ({"exhaustive_limit": 15, "matching": "exhaustive"}, "exhaustive"),
        ({"matching": "sequential", "overlap": 4}, "sequential"),
    ],
)  # fmt: skip
def test_many_photographs_are_compared_with_their_neighbours_only(colmap, asked, changes, name):
    from_photos(asked(**changes))
    assert names(colmap)[1] == name
    if "overlap" in changes:
        assert colmap.calls[1][1]["pairing_options"].overlap == 4


def test_a_run_that_was_ended_goes_on_after_its_last_whole_stage(colmap, asked, tmp_path):
    colmap.failures["exhaustive"] = KeyError("the power went")
    with pytest.raises(DataError, match=r"COLMAP could not find matches: 'the power went'.*has room"):
        from_photos(asked())
    work = tmp_path / "out" / "photos"
    assert sorted(path.name for path in work.iterdir()) == ["features.db", "photos.json"]
    colmap.failures.clear()
    colmap.calls.clear()
    found = from_photos(asked())
    assert names(colmap) == ["exhaustive", "map"] and list(found.seconds) == ["matches", "cameras"]
    colmap.calls.clear()
    sys.modules["pycolmap"] = None  # cameras that are known do not need it
    assert from_photos(asked(train=True, steps=2, training=SHORT)).record.status == "complete"
    assert names(colmap) == []
    assert from_photos(asked(train=True, steps=2, training=SHORT)).record.status == "complete", "resumed at its end"


def test_what_a_killed_run_left_half_made_is_removed(colmap, asked, tmp_path):
    work = tmp_path / "out" / "photos"
    (work / ".matches.db-x1y2").mkdir(parents=True)
    (work / ".matches.db-x1y2" / "matches.db").write_bytes(b"half")
    from_photos(asked())
    assert sorted(path.name for path in work.iterdir()) == ["features.db", "matches.db", "photos.json"]


def test_a_second_run_in_one_folder_waits_and_is_refused(colmap, asked, tmp_path, monkeypatch, held):
    out = tmp_path / "out"
    out.mkdir()
    with held(out):
        monkeypatch.setattr("hotlap.splat.photos.LEAVE_S", 0.1)
        with pytest.raises(UsageError, match=r"another process works in .*out'.*give the same command again"):
            from_photos(asked())
        assert names(colmap) == [] and not (out / "scene" / "images").exists()
    assert from_photos(asked()).points == 400


def test_a_log_has_one_line_of_a_stage_and_not_one_a_second(colmap, asked, capsys, monkeypatch):
    from hotlap.cli.show import ProgressDoor, make_console

    monkeypatch.setattr(motion, "LOOK_S", 0.02)
    find = colmap.extract_features
    monkeypatch.setattr(colmap, "extract_features", lambda *args, **named: (time.sleep(0.3), find(*args, **named)))
    with ProgressDoor(make_console(stderr=True), quiet=False) as door:
        from_photos(asked(), door)
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("features")]
    assert len(told) == 2 and told[0] == "features: looking for them" and re.fullmatch(r"features: \d.* m?s", told[1])


def test_an_interrupted_training_of_photographs_says_how_it_goes_on(colmap, asked, tmp_path, monkeypatch):
    run, heard = Trainer.run, []

    def cut(trainer, until):
        trainer.ends = trainer.step > 0
        run(trainer, until)

    config = asked(train=True, steps=4, training={**SHORT, "log_every": 1})
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Trainer, "run", cut)
        from_photos(config, heard.append)
    said = [event.text for event in heard if event.kind == "warn"]
    assert "stopped after step 1, which is saved; the same command goes on from there" in said
    heard.clear()
    assert from_photos(config, heard.append).record.status == "complete"
    assert any(event.text == "went on from step 1" for event in heard)


ENDED = """
import atexit, os, sys, time
import fake_pycolmap

def extract_features(*given, **options):
    os.kill(os.getpid(), 2)
    time.sleep(60)

fake_pycolmap.extract_features = extract_features
sys.modules["pycolmap"] = fake_pycolmap
atexit.register(os.abort)  # as COLMAP does when it is torn down at work
from hotlap.cli.main import run
sys.exit(run(["splat", "from-photos", *sys.argv[1:], "--no-train"]))
"""


def test_ctrl_c_while_colmap_works_ends_the_process_without_tearing_it_down(scene_folder, tmp_path):
    command = [sys.executable, "-c", ENDED, str(scene_folder / "images"), "--out", str(tmp_path / "out")]
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    ended = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=50, check=False
    )
    assert ended.returncode == 130, ended.stderr
    assert "interrupted; the same command goes on after the last stage that was finished" in ended.stderr
    assert [path.name for path in (tmp_path / "out" / "photos").iterdir()] == ["photos.json"]


def test_another_folder_or_setting_is_refused(colmap, asked, scene_folder, tmp_path):
    from_photos(asked())
    with pytest.raises(ConfigError, match=r"max_side = 800 is not what out = .*Expected 1600"):
        from_photos(asked(max_side=800))
    fewer = tmp_path / "fewer"
    shutil.copytree(scene_folder / "images", fewer)
    (fewer / "view_003.png").unlink()
    with pytest.raises(ConfigError, match=r"photographs in .*fewer' are not what out"):
        from_photos(asked(folder=str(fewer)))


def test_a_bad_photograph_can_be_removed_and_the_same_command_goes_on(colmap, asked, scene_folder, tmp_path):
    photos = tmp_path / "photographs"
    shutil.copytree(scene_folder / "images", photos)
    (photos / "zz.jpg").write_text("no picture")
    with pytest.raises(DataError, match=r"picture '.*zz\.jpg' cannot be read.*Replace or remove"):
        from_photos(asked(folder=str(photos)))
    (photos / "zz.jpg").unlink()
    assert from_photos(asked(folder=str(photos))).photos == 16


def test_a_full_disk_is_no_fault_of_a_photograph(colmap, asked, monkeypatch, tmp_path):
    def full(source, to):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(source), None, str(to))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(
        StorageError, match=r"out = '.*out' cannot be written: No space left on device\. Free some space"
    ):
        from_photos(asked())


def test_a_full_disk_is_told_when_colmap_has_filled_it(colmap, asked, monkeypatch, tmp_path):
    class Full(sqlite3.Connection):
        def execute(self, sql, *given):
            if sql.startswith("PRAGMA"):
                raise sqlite3.OperationalError("database or disk is full")
            return super().execute(sql, *given)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda database: connect(database, factory=Full))
    with pytest.raises(StorageError, match=r"features\.db' cannot be written: database or disk is full\. Free some"):
        from_photos(asked())
    assert list((tmp_path / "out" / "photos").iterdir()) == [tmp_path / "out" / "photos" / "photos.json"]


def test_a_photograph_that_is_too_large_to_train_on_is_refused_at_once(colmap, asked, scene_folder, tmp_path):
    from PIL import Image

    photos = tmp_path / "photographs"
    shutil.copytree(scene_folder / "images", photos)
    Image.new("1", (12_000, 9_000)).save(photos / "view_003.png")
    with pytest.warns(Image.DecompressionBombWarning), pytest.raises(DataError, match=r"003\.png' .* 12000x9000"):
        from_photos(asked(folder=str(photos)))
    assert not (tmp_path / "out" / "scene" / "images").exists() and names(colmap) == []


@pytest.mark.parametrize(("sizes", "count"), [([], 0), ([2], 2)])
def test_without_overlap_it_is_said_how_many_were_found(colmap, asked, tmp_path, sizes, count):
    colmap.models[:] = sizes
    with pytest.raises(DataError, match=f"found for {count} of 16 photographs.*two thirds"):
        from_photos(asked())
    assert not (tmp_path / "out" / "scene" / "sparse").exists()


def test_few_cameras_are_warned_of_by_name(colmap, asked):
    colmap.models[:] = [12]
    warned = []
    from_photos(asked(), lambda event: warned.append(event.text) if event.kind == "warn" else None)
    assert len(warned) == 1 and "4 photographs have no camera: 'view_012.png'" in warned[0]


def test_too_few_or_no_photographs_are_refused(colmap, asked, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "notes.txt").write_text("no picture")
    with pytest.raises(DataError, match=r"empty' holds 0 photographs. Expected at least 3"):
        from_photos(asked(folder=str(empty)))
    with pytest.raises(DataError, match=r"folder = '/nowhere' is no folder"):
        from_photos(asked(folder="/nowhere"))
    with pytest.raises(ConfigError, match="no out was given"):
        from_photos(asked(out=""))
    with pytest.raises(ConfigError, match="no folder was given"):
        from_photos(asked(folder=""))
    with pytest.raises(ConfigError, match="overlap = 0 is not valid"):
        asked(overlap=0)


def test_settings_of_the_training_are_checked_first(colmap, asked, tmp_path):
    with pytest.raises(ConfigError, match=r"training\.scene = 'garden' is decided here.*left out"):
        from_photos(asked(train=True, training={"scene": "garden"}))
    with pytest.raises(ConfigError, match=r"training.preset = 'm8' has a setting of its own.*--preset"):
        from_photos(asked(train=True, training={"preset": "m8"}))
    with pytest.raises(ConfigError, match="step_count"):
        from_photos(asked(train=True, training={"step_count": 3}))
    with pytest.raises(UnknownName, match="'nonsense'"):
        from_photos(asked(train=True, preset="nonsense"))
    assert not (tmp_path / "out").exists()


def test_files_of_other_kinds_are_told(colmap, asked, scene_folder, tmp_path):
    folder = tmp_path / "photos"
    shutil.copytree(scene_folder / "images", folder)
    for name in ("b.HEIC", "a.mov", ".DS_Store"):
        (folder / name).write_bytes(b"")
    heard = []
    assert from_photos(asked(folder=str(folder)), heard.append).photos == 16
    warned = [event.text for event in heard if event.kind == "warn"]
    assert warned == ["2 files of no kind that is read here, left out: 'a.mov', 'b.HEIC'"]


def test_a_file_that_is_no_photograph_is_named(colmap, asked, scene_folder, tmp_path):
    folder = tmp_path / "photos"
    shutil.copytree(scene_folder / "images", folder)
    (folder / "view_005.png").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"view_005\.png' cannot be read"):
        from_photos(asked(folder=str(folder)))
    assert not (tmp_path / "out" / "scene" / "images").exists() and names(colmap) == []


def test_photographs_lie_upright_in_the_scene(colmap, asked, tmp_path):
    from PIL import Image

    folder = tmp_path / "turned"
    folder.mkdir()
    ramp = np.zeros((20, 30, 3), np.uint8)
    ramp[:, :15] = 255
    for number in range(3):
        exif = Image.Exif()
        exif[0x0112] = 6 if number else 1
        Image.fromarray(ramp).save(folder / f"{number}.jpg", exif=exif, quality=95)
    with pytest.raises(DataError, match=r"images are not in"):
        from_photos(asked(folder=str(folder), train=True, steps=2))
    images = tmp_path / "out" / "scene" / "images"
    turned = Image.open(images / "1.jpg")
    assert turned.size == (20, 30) and turned.getexif().get(0x0112, 1) == 1
    assert np.asarray(turned)[3, 10, 0] > 200 and np.asarray(turned)[27, 10, 0] < 50
    assert (images / "0.jpg").read_bytes() == (folder / "0.jpg").read_bytes(), "upright ones are as they were"
    assert dict(colmap.calls)["extract"]["camera_mode"] is colmap.CameraMode.PER_IMAGE, "sizes differ"


def test_a_turned_photograph_with_more_pictures_in_it_loses_no_more_than_another(tmp_path):
    """As telephones write them, with a preview or a map of brightness behind the photograph."""
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8))
    photo.save(tmp_path / "plain.jpg", exif=exif, quality=97)
    photo.save(tmp_path / "many.jpg", "MPO", save_all=True, append_images=[photo], exif=exif, quality=97)
    bring_photos([tmp_path / "plain.jpg", tmp_path / "many.jpg"], tmp_path / "to", ignore)
    with Image.open(tmp_path / "to" / "plain.jpg") as plain, Image.open(tmp_path / "to" / "many.jpg") as many:
        assert many.format == "JPEG" and many.size == (40, 60)
        assert many.quantization == plain.quantization
        assert np.array_equal(np.asarray(many), np.asarray(plain))


def test_webp_becomes_what_colmap_reads(colmap, asked, tmp_path):
    from PIL import Image

    folder = tmp_path / "webp"
    folder.mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    for number in range(3):
        Image.new("RGB", (30, 20), (9, 8, 7)).save(folder / f"{number}.webp", lossless=True, exif=exif)
    from_photos(asked(folder=str(folder)))
    assert dict(colmap.calls)["extract"]["image_names"] == ["0.webp.png", "1.webp.png", "2.webp.png"]
    with Image.open(tmp_path / "out" / "scene" / "images" / "1.webp.png") as photo:
        assert photo.format == "PNG" and photo.size == (20, 30) and photo.getpixel((3, 3)) == (9, 8, 7)


def test_without_pycolmap_the_extra_is_named(monkeypatch, asked, tmp_path):
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    with pytest.raises(EnvironmentUnusable, match=r"pycolmap, which is not installed.*hotlap\[photos\]"):
        from_photos(asked())
    assert not (tmp_path / "out").exists()


def test_the_command_line_finds_cameras(colmap, scene_folder, tmp_path, capsys):
    out = str(tmp_path / "run")
    words = ["splat", "from-photos", str(scene_folder / "images"), "--out", out, "--no-train", "--json", "--quiet"]
    assert run(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["photos"] == 16 and len(found["registered"]) == 14
    more = ["--steps", "2", "--set", "training.sh_degree=0", "--device", "cpu", "--json", "--quiet"]
    assert run(["splat", "from-photos", str(scene_folder / "images"), "--out", out, *more]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["config"]["steps"] == 2 and record["config"]["sh_degree"] == 0
    assert run(["splat", "from-photos", str(tmp_path / "none"), "--out", out]) == 2
    assert "none' is no folder" in capsys.readouterr().err


def textured_room(folder, num, size):
    """Photographs of two walls and a floor with a fine pattern, from an arc; their camera's poses."""
    from PIL import Image

    from hotlap.splat.cameras import look_at

    draw = np.random.default_rng(0)
    pattern = np.kron(draw.integers(0, 255, (40, 40, 3)), np.ones((4, 4, 1))).astype(float)
    width, height, focal = size, size * 3 // 4, size * 0.9
    poses = []
    for number in range(num):
        angle = -0.5 + number / max(1, num - 1)
        place = np.array([3 * np.sin(angle), -0.8 - 0.3 * np.sin(4 * angle), -3 * np.cos(angle)])
        pose = look_at(place, np.zeros(3), np.array([0.0, -1.0, 0.0]))
        u, v = np.meshgrid((np.arange(width) + 0.5 - width / 2) / focal, (np.arange(height) + 0.5 - height / 2) / focal)
        rays = np.stack([u, v, np.ones_like(u)], -1) @ pose[:3, :3]
        best, color = np.full((height, width), np.inf), np.zeros((height, width, 3))
        for axis, where, (a, b) in ((2, 1.0, (0, 1)), (1, 1.0, (0, 2)), (0, -1.8, (1, 2))):
            with np.errstate(divide="ignore", invalid="ignore"):
                depth = (where - place[axis]) / rays[..., axis]
                hit = place + depth[..., None] * rays
            near = (depth > 0) & (depth < best)
            cell = np.floor(hit[..., [a, b]] * 30 + 17 * axis).clip(-1e6, 1e6).astype(int) % 160
            color[near], best[near] = pattern[cell[..., 0], cell[..., 1]][near], depth[near]
        Image.fromarray(color.clip(0, 255).astype(np.uint8)).save(folder / f"photo_{number:02d}.png")
        poses.append(pose)
    return poses


@pytest.mark.slow
def test_pycolmap_itself_finds_where_photographs_were_taken(tmp_path):
    pytest.importorskip("pycolmap")
    folder = tmp_path / "photos"
    folder.mkdir()
    poses = textured_room(folder, 12, 320)
    config = SplatPhotosConfig(folder=str(folder), out=str(tmp_path / "out"), train=False, max_features=1500)
    found = from_photos(config)
    assert len(found.registered) >= 11 and found.points > 300
    assert len(read_model(found.scene / "sparse" / "0").cameras) == 1
    scene = read_scene(found.scene)
    true = {f"photo_{n:02d}.png": -pose[:3, :3].T @ pose[:3, 3] for n, pose in enumerate(poses)}
    here = np.array([view.position() for view in scene.views])
    there = np.array([true[view.name] for view in scene.views])
    # A reconstruction has a scale of its own, so distances are compared after the mean one is made the same.
    apart = [np.linalg.norm(one[:, None] - one[None], axis=-1) for one in (here, there)]
    apart = [one / one.mean() for one in apart]
    # Of 12 photographs of 320 pixels places were seen to be right to 1%.
    assert np.abs(apart[0] - apart[1]).max() < 0.1
