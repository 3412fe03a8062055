"""Small models with masked targets, trained by the exact step with or without trouble."""

from __future__ import annotations

import contextlib

import torch
from torch import nn

from hotlap.engine.exact import ExactStep

EFFECTIVE = 12


def model_of(kind="plain", dtype=torch.float64):
    torch.manual_seed(0)
    layers = {
        "plain": lambda: [nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)],
        "dropout": lambda: [nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 4)],
        "batchnorm": lambda: [nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)],
        "blocks": lambda: [nn.Sequential(nn.Linear(8, 256), nn.Tanh(), nn.GELU(), nn.Linear(256, 8)) for _ in range(6)],
    }
    return nn.Sequential(*layers[kind]()).to(dtype)


def masked_loss(model, batch):
    """Targets below 0 are masked, so that the count is not the number of samples."""
    x, y = batch
    out = model(x)
    return nn.functional.cross_entropy(out, y, reduction="sum", ignore_index=-1), (y >= 0).sum()


def batches(num, size=EFFECTIVE, device="cpu", dtype=torch.float64):
    rng = torch.Generator().manual_seed(7)
    made = []
    for _ in range(num):
        y = torch.randint(-1, 4, (size,), generator=rng)
        y[0] = 1
        made.append((torch.randn(size, 8, generator=rng, dtype=dtype).to(device), y.to(device)))
    return made


def train(model, data, *, memory=None, optimizer=None, **options):
    """The results of a run, and the step that made them; what ``memory`` counts begins with the first step."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = ExactStep(model, optimizer, masked_loss, **options)
    torch.manual_seed(5)
    with memory or contextlib.nullcontext():
        return [step(batch) for batch in data], step


def sgd(model, lr=0.0):
    return torch.optim.SGD(model.parameters(), lr=lr)


def losses(results):
    return torch.stack([result.loss for result in results])


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def assert_same(got, want, rtol=0.0, atol=0.0):
    assert got.keys() == want.keys()
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}")
