"""Scenes that no training begins on: what is wrong with their pictures is said before anything is written."""

from __future__ import annotations

import subprocess
import sys
from shutil import copytree

import pytest
import torch
from PIL import Image

from hotlap.base.errors import DataError
from hotlap.base.events import ignore
from hotlap.splat.config import config_with
from hotlap.splat.stage import open_stage
from hotlap.splat.train import train


def test_masks_that_leave_nothing_to_learn_from_are_refused(scene_folder, tmp_path):
    folder = tmp_path / "scene"
    copytree(scene_folder, folder)
    (folder / "masks").mkdir()
    for path in (folder / "images").iterdir():
        Image.new("L", (48, 32), 0).save(folder / "masks" / path.name)
    config = config_with(scene=str(folder), out=str(tmp_path / "run"), device="cpu", steps=2, strategy="none")
    with pytest.raises(DataError, match=r"masks of the scene '.*scene' leave no pixel to train on.*Invert.*--no-masks"):
        train(config)
    assert not (tmp_path / "run").exists()


def test_a_picture_that_is_too_large_is_refused_in_one_paragraph(scene_folder, tmp_path):
    folder = tmp_path / "scene"
    copytree(scene_folder, folder)
    Image.new("1", (12_000, 8_000)).save(folder / "images" / "view_003.png")
    command = [sys.executable, "-m", "hotlap", "splat", "info", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, "Pillow's warning is not shown"
    assert "view_003.png' cannot be read: 12000x8000 pixels are more than" in done.stderr


@pytest.mark.parametrize(("smaller", "place"), [({}, "disk"), ({"scale": 0.5}, "device"), ({"max_side": 24}, "device")])
def test_pictures_are_kept_where_they_have_room_at_the_size_they_are_kept_at(scene_folder, monkeypatch, smaller, place):
    """14 of them: 64,512 bytes as they are, a quarter of it at half their size. A container grants that much."""
    monkeypatch.setattr("hotlap.device.memory.cgroup_free_bytes", lambda: 100_000)
    monkeypatch.setattr("hotlap.splat.stage.check_room", lambda cameras, device: None)
    stage = open_stage(config_with(scene=str(scene_folder), device="cpu", **smaller), torch.device("cpu"), ignore)
    try:
        assert stage.pictures.place == place
    finally:
        stage.close()
