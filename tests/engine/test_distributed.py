"""Several processes: they agree with one, whoever runs out of memory, dies or has nothing to do."""

from __future__ import annotations

import os

import pytest
import torch
from forked_team import in_team
from torch import nn

from hotlap.engine.config import TrainConfig
from hotlap.engine.loop import Trainer
from hotlap.workload import Workload

CPU = torch.device("cpu")
CLOSE = {"rtol": 1e-11, "atol": 1e-13}
"""Sums of a few terms in float64, taken in another order, over some 20 steps."""


class Sums(torch.utils.data.Dataset):
    """Rows to be added up, of unequal numbers of targets; 22 of them, so that the last batch of 7 has one."""

    def __len__(self):
        return 22

    def __getitem__(self, index):
        random = torch.Generator().manual_seed(index)
        x = torch.randn(6, generator=random, dtype=torch.float64)
        asked = torch.arange(4) <= index % 4
        return x, torch.stack([x.sum(), x.prod(), x.max(), x.min()]), asked


class Masked(Workload):
    """A small model with dropout and a loss over as many targets as each row asks for, in float64."""

    name = "masked"
    default_batch = 7

    def __init__(self, trouble=None):
        self.trouble = trouble

    def build_model(self):
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 4)).double()
        model.register_module("spare", nn.Linear(2, 2).double())
        model.forward = lambda x: nn.Sequential.forward(model[:4], x)
        return model

    def train_data(self):
        return Sums()

    def optimizer(self, model, *, fused=None):
        return torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss(self, model, batch):
        x, want, asked = batch
        out = model(x)
        if self.trouble is not None:
            out = self.trouble(out)
        return ((out - want).square() * asked).sum(), asked.sum()


def settings(**changes):
    return TrainConfig(**{"target": "masked", "epochs": 4, "log_every": 1, "probation": 3, "device": "cpu", **changes})


def train(team, folder, config, trouble=None, resume=False):
    """Weights, losses and outcome of a training of one process or of one of a team's."""
    trainer = Trainer(Masked(trouble), config, folder, CPU, team=team)
    seen = []
    step = trainer.parts.step

    def spied(batch, **place):
        result = step(batch, **place)
        seen.append((float(result.loss), result.num_splits, getattr(step, "overlaps", False)))
        return result

    trainer.parts.step = Spied(step, spied)
    checkpoint = trainer.store.load("latest") if resume else None
    outcome = trainer.run(checkpoint)
    return {k: v.clone() for k, v in trainer.parts.model.state_dict().items()}, seen, outcome


class Spied:
    def __init__(self, step, call):
        self.__dict__ |= {"_step": step, "_call": call}

    def __call__(self, *args, **kwargs):
        return self._call(*args, **kwargs)

    def __getattr__(self, name):
        return getattr(self._step, name)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same training in one process."""
    return train(None, tmp_path_factory.mktemp("alone"), settings())


def losses(seen):
    return torch.tensor([loss for loss, *_ in seen])


def assert_same_training(got, want):
    torch.testing.assert_close(got[0], want[0], **CLOSE)
    torch.testing.assert_close(losses(got[1]), losses(want[1]), rtol=1e-6, atol=0)  # kept as float32
    assert got[2].step == want[2].step == 16


@pytest.mark.parametrize("probation", [0, 3, 1000], ids=["overlapping", "both", "voting"])
def test_two_processes_equal_one(tmp_path, alone, probation):
    both = in_team(train, tmp_path, settings(probation=probation))
    for got in both:
        assert_same_training(got, alone)
    torch.testing.assert_close(both[0][0], both[1][0], rtol=0, atol=0)
    assert any(overlapped for *_, overlapped in both[0][1]) == (probation < 1000)
