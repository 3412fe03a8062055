"""Several processes that train one model, each with cameras of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from hotlap.base.errors import ConfigError
from hotlap.data.splats import read_splats
from hotlap.splat.train import train, train_model

OWN = ("means2d", "means2d_abs", "viewmats")
"""Gradients that belong to one view."""


class Two:
    """A team of two in one process: the other's gradients are computed here too, and its view's own numbers moved."""

    rank, size = 0, 2

    def __init__(self):
        self.other = None

    def reduce(self, grads, visible):
        """Adds what the second camera of this step says."""
        trainer = self.other
        first, number = (trainer.camera_at(2 * trainer.step + n) for n in (0, 1))
        key = (*trainer.stage.cameras.sizes[number], 0)
        picture = trainer.stage.pictures[number]
        seen = visible.clone()
        step, poses = trainer.train_step, trainer.beside.poses
        mine = {name: grad.clone() for name, grad in grads.items()}
        frame = step.put(key, number, picture.image, picture.mask)
        theirs = step.differentiate(frame, step.degree_at(trainer.step))
        for name, grad in grads.items():
            grad.copy_(mine[name] if name in OWN else (mine[name] + theirs[name]) / 2)
        visible |= seen
        if poses is not None and number != first:
            poses.step(frame.which, trainer.stage.cameras.viewmats[number][None], theirs["viewmats"])
        frame.which.fill_(first)

    def share_stats(self, state):
        """Nothing: both cameras were heard here."""

    def share_views(self, tables, numbers):
        """Nothing: both views were moved here."""

    def mean(self, value):
        return value


def by_two(config, folder):
    """What each of two processes came to that trained together."""
    script = Path(__file__).with_name("splat_team.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    subprocess.run([*command, json.dumps(asdict(config)), str(folder)], check=True, env=os.environ, timeout=240)
    return [torch.load(folder / f"rank{rank}.pt") for rank in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("beside", [{}, {"poses": True, "exposure": True, "lr_poses": 1e-3}], ids=["splats", "views"])
def test_two_processes_train_as_one_that_sees_both_cameras(settings, tmp_path, trainer, beside):
    common = {"steps": 6, "log_every": 3, "densify_every": 0, "out": str(tmp_path / "both"), "pictures": 0, **beside}
    first, second = by_two(settings(**common), tmp_path)
    for name in first:
        assert torch.equal(first[name], second[name]), name
    made = trainer(**common)
    start = [table.clone() for table in made.beside.by_view()]
    made.team = made.train_step.reduce = None
    team = Two()
    team.other, made.team, made.train_step.reduce = made, team, team.reduce
    made.run(6)
    for name in ("means", "scales", "opacities", "colors"):
        assert torch.allclose(first[name], made.state.alive(name), rtol=1e-3, atol=1e-4), name
    # Six steps of two views see twelve of fourteen; none stands where it stood, and Adam has counted each once.
    tables = made.beside.by_view()
    assert len(tables) == (8 if beside else 0)
    for place, table in enumerate(tables):
        assert torch.allclose(first[f"by view {place}"], table, rtol=1e-3, atol=1e-4), place
        moved = (table != start[place]).flatten(1).any(1)
        assert int(moved.sum()) == 12
    assert (tmp_path / "both" / "model.ply").is_file()


@pytest.mark.slow
def test_two_processes_that_see_one_picture_move_its_pose_once(settings, tmp_path):
    changes = {"steps": 3, "log_every": 3, "densify_every": 0, "pictures": 0, "poses": True, "exposure": True}
    done = settings(**changes, image_index=2, out=str(tmp_path / "both"))
    first, second = by_two(done, tmp_path)
    alone = train_model(settings(**changes, image_index=2, out=str(tmp_path / "one"))).trainer
    for place, table in enumerate(alone.beside.by_view()):
        assert torch.equal(first[f"by view {place}"], second[f"by view {place}"])
        assert torch.allclose(first[f"by view {place}"], table, rtol=1e-4, atol=1e-6), place


@pytest.mark.slow
def test_two_processes_go_on_bit_by_bit_between_two_densifications(settings, tmp_path):
    """Each has statistics of its own views then, and those of one are not those of both."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    changes = {"densify_every": 10, "checkpoint_every": 3, "keep": 9, "pictures": 0, "log_every": 7, "steps": 21}
    by_two(settings(**changes, out=str(whole)), tmp_path)
    shutil.copytree(whole, cut)
    (cut / "model.ply").unlink()
    for path in (cut / "checkpoints").glob("step-*.pt"):
        if int(path.name.split("-")[1]) > 6:
            path.unlink()
    by_two(settings(**changes, out=str(cut), resume=True), tmp_path)
    for name in ("model.ply", "metrics.csv"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes(), name
    assert len(read_splats(whole / "model.ply")) > 400, "the densification after the cut added some"


def test_what_one_process_alone_can_do_is_refused(settings, monkeypatch):
    for name, value in (("RANK", 0), ("WORLD_SIZE", 2), ("LOCAL_RANK", 0), ("MASTER_ADDR", "x"), ("MASTER_PORT", 1)):
        monkeypatch.setenv(name, str(value))
    with pytest.raises(ConfigError, match="view = 9000 with 2 processes is not supported"):
        train(settings(view=9000))
