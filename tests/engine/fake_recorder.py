"""Recordings without a card: what was recorded is run again on the same buffers, and writes to the same results."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import torch
from tiny_training import masked_loss
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from hotlap.engine import graphs
from hotlap.engine.exact import ExactStep
from hotlap.measure.graph import Recording


class FakeRecorder:
    """Stands in for a card's recorder. As on a card, recording changes nothing, and a replay asks the host nothing."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.aside_bytes = 0
        self.num_recordings = self.num_closed = 0
        self.fails: list[Exception] = []
        """Raised by the next recordings, in turn."""

    def record(self, work) -> Recording:
        if self.fails:
            raise self.fails.pop(0)
        self.num_recordings += 1
        self.aside_bytes += 1000
        parameters = list(self.model.parameters())
        begun_with = [p.grad for p in parameters]
        added_to = [None if g is None else g.clone() for g in begun_with]
        before, chance = copy.deepcopy(self.model.state_dict()), torch.get_rng_state()
        out = work()
        wrote = [p.grad for p in parameters]
        with torch.no_grad():
            for tensor, was in zip(begun_with, added_to, strict=True):
                if tensor is not None:
                    tensor.copy_(was)
        self.model.load_state_dict(before)
        torch.set_rng_state(chance)
        return Recording(lambda: self._replay(work, out, begun_with, wrote), out)

    def _replay(self, work, out, begun_with, wrote) -> None:
        parameters = list(self.model.parameters())
        in_force = [p.grad for p in parameters]
        for p, gradient in zip(parameters, begun_with, strict=True):
            p.grad = gradient
        again = work()
        with torch.no_grad():
            for p, target in zip(parameters, wrote, strict=True):
                if target is not None and p.grad is not target:
                    target.copy_(p.grad)
            for target, source in zip(out, again, strict=True):
                if isinstance(target, Tensor):
                    target.copy_(source)
        for p, gradient in zip(parameters, in_force, strict=True):
            p.grad = gradient

    def close(self) -> None:
        self.num_closed += 1
        self.aside_bytes = 0


def use_fake_recorders(monkeypatch) -> SimpleNamespace:
    """From now on steps get fake recorders for ``model``, which is to be set; ``all`` lists those they asked for."""
    made = SimpleNamespace(model=None, all=[])

    def make(device):
        made.all.append(FakeRecorder(made.model))
        return made.all[-1]

    monkeypatch.setattr(graphs, "recorder_for", make)
    return made


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def step_of(model, recorders, *, loss=masked_loss, optimizer=None, **options):
    """A step that records, and what it says."""
    recorders.model = model
    said = []
    step = ExactStep(model, optimizer or adam(model), loss, graph=True, say=said.append, **options)
    torch.manual_seed(5)
    return step, said


def spoilt(tensors):
    """The same tensors full of nonsense, so that reading them after their time is noticed."""
    return tree_map_only(Tensor, lambda t: t.fill_(float("nan")) if t.is_floating_point() else t.fill_(-1), tensors)
