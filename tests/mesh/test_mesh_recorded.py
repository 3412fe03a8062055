"""Stages of Pixel2Mesh++ trained from recorded passes, as they are step by step; on a card."""

from __future__ import annotations

import pytest
import torch

from hotlap.engine.config import TrainConfig
from hotlap.engine.journal import read_journal
from hotlap.engine.loop import Trainer
from hotlap.targets import load_target

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

SMALL = {"levels": 2, "hidden": 32, "views": 2, "points": 200, "samples": 100, "train_objects": 8, "eval_objects": 2}


def losses(folder, stage: int, *, graph: bool) -> tuple[list[float], int]:
    """The losses of some steps, and how many passes were replayed."""
    options = {**SMALL, "stage": stage}
    config = TrainConfig(
        target="pixel2mesh-pp", workload=options, steps=9, epochs=9, batch=2, lr=1e-4, log_every=1, eval_every=0,
        kernels=True, fused=True, graph=graph, workers=0, tuned=False, device="cuda",
    )  # fmt: skip
    outcome = Trainer(load_target("pixel2mesh-pp", options), config, folder, torch.device("cuda", 0)).run()
    return [row.values["loss"] for row in read_journal(folder) if row.split == "train"], outcome.num_replays


@pytest.mark.parametrize("stage", [1, 2])
def test_a_stage_learns_the_same_from_recorded_passes(tmp_path, stage):
    plain, _ = losses(tmp_path / "plain", stage, graph=False)
    mine, num_replays = losses(tmp_path / "graph", stage, graph=True)
    assert num_replays == 6
    # Gradients are summed by atomics, in another order every time.
    assert mine == pytest.approx(plain, rel=1e-2)
