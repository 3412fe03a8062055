"""The tiny workload in trouble: it raises, runs out of memory, or kills the process it is in, once or always."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
from cut_batches import CUTTER, handed
from tiny_workload import WIDTH, Rows, Tiny
from torch import nn
from torch.utils.data import get_worker_info


class KillingRows(Rows):
    """Kills the process that reads sample 40, if it is of the kind it is meant for, once."""

    def __init__(self, flag: str, *, in_worker: bool) -> None:
        super().__init__(52, seed=1)
        self.flag, self.in_worker = Path(flag), in_worker

    def __getitem__(self, index: int):
        if index == 40 and (get_worker_info() is not None) == self.in_worker and not self.flag.exists():
            self.flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Greedy(nn.Module):
    """A layer that never fits."""

    def forward(self, x):
        if self.training:
            raise torch.OutOfMemoryError("out of memory: tried to allocate 99 GiB")
        return x


class Troubled(Tiny):
    """``trouble``: slow, raises, out of memory, killed, worker killed, batch cut off."""

    def __init__(self, *, trouble: str, flag: str = "", delay_s: float = 0.03, at: int = 20) -> None:
        super().__init__(dropout=0.1, norm=trouble != "out of memory")
        self.trouble, self.delay_s, self.at, self.num_losses = trouble, delay_s, at, 0
        if trouble in ("killed", "worker killed"):
            self.train_rows = KillingRows(flag, in_worker=trouble == "worker killed")
        if trouble == "batch cut off" and not Path(flag).exists():
            Path(flag).touch()
            CUTTER.at = 11

    def collate(self, samples):
        batch = super().collate(samples)
        return handed(tuple(batch)) if self.trouble == "batch cut off" else batch

    def build_model(self) -> nn.Module:
        model = super().build_model()
        return nn.Sequential(model[:3], Greedy(), model[3:]) if self.trouble == "out of memory" else model

    def loss(self, model, batch):
        if model.training:
            self.num_losses += 1
            time.sleep(self.delay_s if self.trouble == "slow" else 0)
            if self.trouble == "raises" and self.num_losses == self.at:
                return torch.ones(3) @ torch.ones(WIDTH), 1  # the line a user is shown
        return super().loss(model, batch)
