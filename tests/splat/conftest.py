"""A scene so small that a step of it takes milliseconds."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from hotlap.base.events import ignore
from hotlap.data.drawn_scene import DrawnScene, write_drawn_scene
from hotlap.splat.config import config_with
from hotlap.splat.stage import open_stage
from hotlap.splat.trainer import Trainer

CPU = torch.device("cpu")
TINY = DrawnScene(num_views=16, width=48, height=32, num_points=400)
TINY_SETTINGS = {
    "background": "learn", "lr_background": 0.05, "densify_from": 5, "densify_every": 5, "densify_until": 20,
    "reset_every": 0, "sh_every": 5, "sh_degree": 1, "steps": 30, "log_every": 10, "lr_colors": 0.03,
    "lr_scales": 0.03, "lr_opacities": 0.2,
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Threads of torch that wait for each other on a busy machine take longer than such small work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def scene_folder(tmp_path_factory):
    """A drawn scene on disk; tests do not change it."""
    folder = tmp_path_factory.mktemp("scene")
    write_drawn_scene(folder, TINY)
    return folder


@pytest.fixture
def held():
    """Holds a folder, as another process that works there does, while it lasts."""

    @contextmanager
    def hold(folder):
        code = (
            "import sys; from pathlib import Path; from hotlap.engine.alone import alone_in\n"
            "with alone_in(Path(sys.argv[1])):\n    print('held', flush=True); sys.stdin.readline()\n"
        )
        command = [sys.executable, "-c", code, str(folder)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
            assert first.stdout.readline() == "held\n"
            yield
            first.communicate("leave\n")

    return hold


@pytest.fixture
def settings(scene_folder, tmp_path):
    """Makes settings for the tiny scene, on the CPU unless said otherwise."""

    def make(preset="default", **changes):
        out = str(tmp_path / "out")
        return config_with(
            preset, **{"scene": str(scene_folder), "out": out, "device": "cpu", **TINY_SETTINGS, **changes}
        )

    return make


@pytest.fixture
def trainer(settings):
    """Makes trainers of the tiny scene, without files."""
    stages = []

    def make(device=CPU, change=None, **changes):
        config = settings(**changes)
        stage = open_stage(config, device, ignore)
        stages.append(stage)
        return Trainer(config, replace(stage, **change(stage)) if change else stage, device, ignore)

    yield make
    for stage in stages:
        stage.close()
