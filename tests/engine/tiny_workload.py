"""A workload that trains in milliseconds and has everything that could keep a resumed run from being the same one:
dropout, running statistics, augmentation drawn from the global generators, and random numbers drawn by the model."""

from __future__ import annotations

import random

import torch
from torch import nn
from torch.nn import functional as F

from hotlap.workload import BadSample, Workload

WIDTH = 6


class Rows(torch.utils.data.Dataset):
    """Points of two classes, each moved a little, at random, every time it is read; those in ``bad`` are."""

    def __init__(self, num_samples: int, *, seed: int, noise: float = 0.1, bad: tuple[int, ...] = ()) -> None:
        chance = torch.Generator().manual_seed(seed)
        self.x = torch.randn(num_samples, WIDTH, generator=chance)
        self.y = (self.x[:, 0] + self.x[:, 1] > 0).long()
        self.noise, self.bad = noise, bad

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int):
        if index in self.bad:
            raise BadSample(f"rows/{index}", "its bytes are gone")
        moved = self.x[index] + self.noise * torch.randn(WIDTH) + self.noise * random.random()
        return moved, self.y[index]


class Noisy(nn.Module):
    """Adds noise from torch's global generator while training, as a model with its own sampling does."""

    def forward(self, x):
        return x + 0.01 * torch.randn(x.shape).to(x.device) if self.training else x


class Tiny(Workload):
    """Two classes, a few hundred weights."""

    name = "tiny"
    default_batch = 8

    def __init__(
        self,
        *,
        num_train: int = 52,
        num_eval: int = 20,
        dropout: float = 0.2,
        noise: float = 0.1,
        bad: tuple[int, ...] = (),
        bad_eval: tuple[int, ...] = (),
        norm: bool = True,
    ) -> None:
        self.dropout, self.norm = dropout, norm
        self.train_rows = Rows(num_train, seed=1, noise=noise, bad=bad)
        self.eval_rows = Rows(num_eval, seed=2, noise=0.0, bad=bad_eval)

    def build_model(self) -> nn.Module:
        norm = nn.BatchNorm1d(16) if self.norm else nn.Identity()
        noisy = Noisy() if self.norm else nn.Identity()
        return nn.Sequential(nn.Linear(WIDTH, 16), norm, nn.Tanh(), noisy, nn.Dropout(self.dropout), nn.Linear(16, 2))

    def make_batch(self, n, device, generator):
        x = torch.randn(n, WIDTH, generator=generator)
        return x.to(device), (x.sum(1) > 0).long().to(device)

    def loss(self, model, batch):
        x, y = batch
        return F.cross_entropy(model(x).float(), y, reduction="sum"), len(y)

    def train_data(self):
        return self.train_rows

    def eval_data(self):
        return self.eval_rows

    def metrics(self, model, data, device):
        x, y = (torch.stack(column).to(device) for column in zip(*(data[i] for i in range(len(data))), strict=True))
        return {"accuracy": (model(x).argmax(1) == y).double().mean().item()}
