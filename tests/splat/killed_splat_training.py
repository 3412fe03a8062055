"""A training in a process of its own, which says so when it has saved its first checkpoint."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from hotlap.splat.config import config_with
from hotlap.splat.train import train

if __name__ == "__main__":
    torch.set_num_threads(1)
    changes = json.loads(sys.argv[1])
    saved = Path(changes["out"]) / "checkpoints"

    def watch(step, trainer):
        if any(saved.glob("step-*.pt")):
            print("saved", flush=True)

    train(config_with(changes.pop("preset"), **changes), watch=watch)
