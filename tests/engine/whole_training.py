"""Whole trainings of a workload of milliseconds, in this process, and what they left."""

from __future__ import annotations

import torch
from tiny_workload import Tiny

from hotlap.engine.checkpoint import CheckpointStore
from hotlap.engine.config import TrainConfig
from hotlap.engine.journal import read_journal
from hotlap.engine.loop import Trainer

QUICK = {"epochs": 2, "log_every": 1, "lr": 0.02}


def trainer(folder, workload=None, device="cpu", *, emit=lambda event: None, should_stop=lambda: False, **settings):
    config = TrainConfig(target="tiny", **(QUICK | settings))
    return Trainer(
        workload or Tiny(), config, folder, torch.device(device), emit=emit, should_stop=should_stop
    )  # fmt: skip


def train(folder, workload=None, device="cpu", *, resume=False, **settings):
    """A whole training in this process, from the newest checkpoint if asked; its outcome."""
    made = trainer(folder, workload, device, **settings)
    return made.run(made.store.load() if resume else None)


def column(folder, split: str, name: str) -> list[float]:
    return [row.values[name] for row in read_journal(folder) if row.split == split]


def newest(folder) -> dict:
    return CheckpointStore(folder / "checkpoints").load().state


def whole(folder, **settings) -> bytes:
    train(folder, **settings)
    return (folder / "metrics.jsonl").read_bytes()
