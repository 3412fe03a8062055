"""Results never come to lie among a user's own photographs and cameras."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from hotlap.base.errors import ConfigError
from hotlap.cli.main import run
from hotlap.data.drawn_scene import DrawnScene, write_drawn_scene
from hotlap.splat.config import SplatRenderConfig
from hotlap.splat.photos import from_photos
from hotlap.splat.photos_config import SplatPhotosConfig
from hotlap.splat.render import render
from hotlap.splat.train import train


@pytest.fixture
def own(tmp_path):
    """A scene that a test may spoil."""
    write_drawn_scene(tmp_path / "own", DrawnScene(num_views=9, width=32, height=24, num_points=60))
    return tmp_path / "own"


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def refused(config, folder: Path) -> None:
    before = digests(folder)
    with pytest.raises(ConfigError, match=r"out = '.*' would put results among the files in '.*'\. Expected a folder"):
        train(config)
    assert digests(folder) == before, "nothing was written"


@pytest.mark.parametrize("place", [".", "images", "images/run", "sparse", "sparse/0", "sparse/0/run", "other/.."])
def test_a_training_is_not_put_among_the_files_of_its_scene(settings, own, place):
    refused(settings(scene=str(own), out=str(own / place), steps=2), own)


def test_another_name_of_the_scene_does_not_hide_it(settings, own, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(own)
    refused(settings(scene=str(own), out=str(tmp_path / "link"), steps=2), own)
    monkeypatch.chdir(own)
    refused(settings(scene=".", out=".", steps=2), own)


def test_photographs_where_pictures_would_be_written_are_safe(settings, own):
    """The pictures that a training leaves have the names of the photographs."""
    (own / "images").rename(own / "pictures")
    refused(settings(scene=str(own), images="pictures", out=str(own), steps=2), own)
    whole = own.parent
    lying = whole / "pictures"
    shutil.copytree(own, lying)
    frames = [
        {"file_path": "view_000.png", "transform_matrix": [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 4], [0, 0, 0, 1]]},
        {"file_path": "view_001.png", "transform_matrix": [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 4], [0, 0, 0, 1]]},
    ]
    for frame in frames:
        shutil.copy(lying / "pictures" / frame["file_path"], lying)
    shutil.rmtree(lying / "sparse")
    (lying / "transforms.json").write_text(json.dumps({"camera_angle_x": 0.8, "frames": frames}))
    refused(settings(scene=str(lying), out=str(whole), steps=2), lying)


def test_a_folder_inside_the_scene_and_one_around_it_are_fine(settings, own):
    before = digests(own)
    assert train(settings(scene=str(own), out=str(own / "run"), steps=2)).status == "complete"
    assert train(settings(scene=str(own), out=str(own.parent), steps=2)).status == "complete"
    shutil.rmtree(own / "run")
    assert digests(own) == before


def test_pictures_are_not_rendered_over_photographs(settings, own):
    out = str(own / "run")
    train(settings(scene=str(own), out=out, steps=2))
    before = digests(own)
    for path in ("views", "orbit"):
        with pytest.raises(ConfigError, match=r"would put results among the files in '.*images'"):
            render(SplatRenderConfig(model=out, path=path, out=str(own / "images"), frames=1, device="cpu"))
    assert digests(own) == before
    assert render(SplatRenderConfig(model=out, out=str(own / "drawn"), device="cpu"))


@pytest.mark.parametrize("name", ["photos", "scene", "scene/images", "pictures", "checkpoints", "."])
def test_photographs_are_not_where_their_results_would_be(own, tmp_path, name, capsys):
    whole = tmp_path / "whole"
    shutil.copytree(own / "images", whole / name)
    before = digests(whole)
    with pytest.raises(ConfigError, match="would put results among the files in"):
        from_photos(SplatPhotosConfig(folder=str(whole / name), out=str(whole)))
    assert run(["splat", "from-photos", str(whole / name), "--out", str(whole)]) == 2
    assert "a folder of its own" in " ".join(capsys.readouterr().err.split())
    assert digests(whole) == before
