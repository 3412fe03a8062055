"""A small training in float64 with all that is hard for several processes, and ways to disturb one of them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
from torch import nn

from hotlap.workload import BadSample, Workload


class Sums(torch.utils.data.Dataset):
    """Rows to be added up, of unequal numbers of targets; 22 of them, so that the last batch of 7 has one."""

    def __len__(self):
        return 22

    def __init__(self, deadly=None, bad=()):
        self.deadly, self.bad = deadly, bad

    def __getitem__(self, index):
        if index == self.deadly and is_second():
            os.kill(os.getpid(), signal.SIGKILL)
        if index in self.bad:
            raise BadSample(f"row {index}", "unreadable")
        random = torch.Generator().manual_seed(index)
        x = torch.randn(6, generator=random, dtype=torch.float64)
        asked = torch.arange(4) <= index % 4
        return x, torch.stack([x.sum(), x.prod(), x.max(), x.min()]), asked


class Net(nn.Module):
    """A block with dropout, a head, and a layer that nothing uses."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.3))
        self.head, self.spare = nn.Linear(16, 4), nn.Linear(2, 2)

    def forward(self, x):
        return self.head(self.body(x))


class Masked(Workload):
    """A small model with dropout and a loss over as many targets as each row asks for, in float64."""

    name = "masked"
    default_batch = 7

    def __init__(self, trouble=None, deadly_sample=None, bad_samples=()):
        self.trouble, self.deadly_sample, self.bad_samples = trouble, deadly_sample, bad_samples

    def build_model(self):
        return Net().double()

    def train_data(self):
        return Sums(self.deadly_sample, self.bad_samples)

    def eval_data(self):
        return Sums()

    def optimizer(self, model, *, fused=None):
        return torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss(self, model, batch):
        x, want, asked = batch
        out = model(x)
        if self.trouble is not None and model.training:
            out = self.trouble(out)
        return ((out - want).square() * asked).sum(), asked.sum()


def is_second():
    """Whether this is the second process of a team."""
    return os.environ.get("RANK") == "1"


class RunsOut:
    """Takes the memory away from one process, at one of its steps, as long as it holds more than ``fits`` samples."""

    def __init__(self, where, *, at_call, fits):
        self.where, self.at_call, self.fits, self.num_calls = where, at_call, fits, 0

    def __call__(self, out):
        if not is_second():
            return out
        self.num_calls += 1
        if self.num_calls < self.at_call or len(out) <= self.fits:
            return out
        if self.where == "forward":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return RunsOutBackwards.apply(out)


class RunsOutBackwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


class TwoMishaps:
    """In the second process: killed in its sixth step, and after a new start out of memory in the backward passes of
    later steps, until no more than two samples are held."""

    def __init__(self, folder):
        self.marker, self.num_calls = Path(folder) / "killed", 0
        self.short = RunsOut("backward", at_call=5, fits=2) if self.marker.exists() else None

    def __call__(self, out):
        self.num_calls += 1
        if self.short is not None:
            return self.short(out)
        if is_second() and self.num_calls == 6:
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return out


def masked(mishaps: str = "", pause_s: float = 0.0):
    """The target of command lines; a pause is made in each step of a process of a team."""

    def pause(out):
        if "RANK" in os.environ:
            time.sleep(pause_s)
        return out

    return Masked(TwoMishaps(mishaps) if mishaps else pause)
