"""Cell networks trained from recorded passes, as they are step by step; on a card."""

from __future__ import annotations

import pytest
import torch

from hotlap.engine.config import TrainConfig
from hotlap.engine.journal import read_journal
from hotlap.engine.loop import Trainer
from hotlap.segment.cells import cells

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def losses(folder, model: str, *, graph: bool) -> tuple[list[float], int]:
    """The losses of some steps, and how many passes were replayed."""
    options = {"model": model, "width": 16, "size": 64, "batch": 4, "train_images": 8, "eval_images": 1}
    config = TrainConfig(
        target="cells", workload=options, steps=9, epochs=9, lr=1e-3, log_every=1, eval_every=0, fused=True,
        graph=graph, workers=0, tuned=False, device="cuda", clip_norm=5.0,
    )  # fmt: skip
    outcome = Trainer(cells(**options), config, folder, torch.device("cuda", 0)).run()
    return [row.values["loss"] for row in read_journal(folder) if row.split == "train"], outcome.num_replays


@pytest.mark.parametrize("model", ["hrnet", "resunet-small", "ma-resunet", "unet"])
def test_a_network_learns_the_same_from_recorded_passes(tmp_path, model):
    plain, _ = losses(tmp_path / "plain", model, graph=False)
    mine, num_replays = losses(tmp_path / "graph", model, graph=True)
    assert num_replays == 6
    assert mine == pytest.approx(plain, rel=2e-2)
