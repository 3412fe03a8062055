"""Several processes that train one model, each with cameras of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from hotlap.base.errors import ConfigError
from hotlap.splat.config import LEARNABLE
from hotlap.splat.train import train


class Two:
    """A team of two in one process: the other's gradients are computed here too."""

    rank, size = 0, 2

    def __init__(self):
        self.other = None

    def reduce(self, grads, visible):
        """Adds what the second camera of this step says."""
        trainer = self.other
        number = trainer.camera_at(2 * trainer.step + 1)
        key = (*trainer.stage.cameras.sizes[number], 0)
        picture = trainer.stage.pictures[number]
        seen = visible.clone()
        step = trainer.train_step
        mine = {name: grad.clone() for name, grad in grads.items()}
        theirs = step.differentiate(step.put(key, number, picture.image, picture.mask), step.degree_at(trainer.step))
        for name, grad in grads.items():
            grad.copy_((mine[name] + theirs[name]) / 2)
        visible |= seen

    def share_stats(self, state):
        """Nothing: both cameras were heard here."""

    def mean(self, value):
        return value


@pytest.mark.slow
def test_two_processes_train_as_one_that_sees_both_cameras(settings, tmp_path, trainer):
    import json

    common = {"steps": 6, "log_every": 3, "densify_every": 0, "out": str(tmp_path / "both"), "pictures": 0}
    script = Path(__file__).with_name("splat_team.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    subprocess.run(
        [*command, json.dumps(asdict(settings(**common))), str(tmp_path)], check=True, env=os.environ, timeout=240
    )
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    for name in LEARNABLE:
        assert torch.equal(first[name], second[name]), name
    made = trainer(**common)
    made.team = made.train_step.reduce = None
    team = Two()
    team.other, made.team, made.train_step.reduce = made, team, team.reduce
    made.run(6)
    for name in ("means", "scales", "opacities", "colors"):
        assert torch.allclose(first[name], made.state.alive(name), rtol=1e-3, atol=1e-4), name
    assert (tmp_path / "both" / "model.ply").is_file()


def test_what_one_process_alone_can_do_is_refused(settings, monkeypatch):
    for name, value in (("RANK", 0), ("WORLD_SIZE", 2), ("LOCAL_RANK", 0), ("MASTER_ADDR", "x"), ("MASTER_PORT", 1)):
        monkeypatch.setenv(name, str(value))
    with pytest.raises(ConfigError, match="poses = True with 2 processes is not supported"):
        train(settings(poses=True))
