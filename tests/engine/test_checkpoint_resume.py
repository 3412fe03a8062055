"""A training that goes on from a checkpoint ends with the very same bits."""

from __future__ import annotations

import random

import numpy
import pytest
import torch

from hotlap.device.seed import rng_state, seed_everything, set_rng_state
from hotlap.engine.checkpoint import CheckpointStore

STEPS = 6


@pytest.fixture(autouse=True)
def _chance_of_others():
    """Other tests draw as if this one had not been."""
    before = rng_state()
    yield
    set_rng_state(before)


class Training:
    """A small net with dropout, trained on noise from every generator: whatever is not restored shows."""

    def __init__(self, seed, device):
        seed_everything(seed)
        self.device, self.step = device, 0
        layers = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1)
        self.model = torch.nn.Sequential(*layers).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=0.1, total_steps=STEPS + 1)
        self.ema = torch.optim.swa_utils.AveragedModel(self.model)

    def parts(self):
        return {name: getattr(self, name) for name in ("model", "optimizer", "schedule", "ema")}

    def advance(self, until):
        while self.step < until:
            batch = torch.randn(4, 8) * random.random() + numpy.random.standard_normal()
            self.optimizer.zero_grad()
            (self.model(batch.to(self.device)) - torch.rand(4, 1, device=self.device)).square().sum().backward()
            self.optimizer.step()
            self.schedule.step()
            self.ema.update_parameters(self.model)
            self.step += 1

    def state(self):
        return {**{name: part.state_dict() for name, part in self.parts().items()}, "rng": rng_state()}

    def restore(self, checkpoint):
        for name, part in self.parts().items():
            part.load_state_dict(checkpoint.state[name])
        set_rng_state(checkpoint.state["rng"])
        self.step = checkpoint.step


def bits(training):
    """Every weight, buffer and moment, as bytes."""
    tensors = [*training.model.state_dict().values(), *training.ema.state_dict().values()]
    tensors += [value for moments in training.optimizer.state.values() for value in moments.values()]
    return [tensor.detach().cpu().numpy().tobytes() for tensor in tensors]


@pytest.mark.parametrize("stop", [1, 4])
def test_a_resumed_training_ends_with_the_same_bits(tmp_path, device, stop):
    through = Training(seed=1, device=device)
    through.advance(STEPS)

    store = CheckpointStore(tmp_path)
    stopped = Training(seed=1, device=device)
    stopped.advance(stop)
    store.save(stopped.state(), step=stop)
    stopped.advance(STEPS)
    assert bits(stopped) == bits(through), "saving changes nothing"

    resumed = Training(seed=2, device=device)
    resumed.restore(store.load(map_location=device))
    assert bits(resumed) != bits(through)
    resumed.advance(STEPS)
    assert bits(resumed) == bits(through)
