"""One of the processes that train a model together; each writes what it came to."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from hotlap.splat.config import LEARNABLE, config_with
from hotlap.splat.train import train_model

if __name__ == "__main__":
    torch.set_num_threads(1)
    done = train_model(config_with(**json.loads(sys.argv[1])))
    arrays = {name: done.trainer.state.alive(name).clone() for name in LEARNABLE}
    arrays |= {f"by view {place}": table for place, table in enumerate(done.trainer.beside.by_view())}
    torch.save(arrays, Path(sys.argv[2]) / f"rank{os.environ['RANK']}.pt")
