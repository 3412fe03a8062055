"""A plain model's other outputs: judged for inference as the first is."""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from hotlap.measure.jobs import gate


class Two(nn.Module):
    """Returns a second tensor whose sum loses all digits of a short format."""

    def __init__(self, by: float = 1000.0) -> None:
        super().__init__()
        self.layer, self.by = nn.Linear(4, 3), by

    def forward(self, x):
        out = self.layer(x)
        return out, (out + self.by) - self.by, out.argmax(1), torch.full_like(out, -torch.inf)


@dataclasses.dataclass
class Answer:
    loss: torch.Tensor | None
    first: torch.Tensor
    second: torch.Tensor


class Named(Two):
    """The same as Two, in a dataclass."""

    def forward(self, x):
        return Answer(None, *super().forward(x)[:2])


class Waves(Two):
    """Complex numbers, whose second part alone loses all digits of a short format."""

    def forward(self, x):
        return torch.complex(*(part.float() for part in super().forward(x)[:2]))


@pytest.fixture
def models(monkeypatch):
    module = ModuleType("two_outputs")
    module.Two, module.Named, module.Waves = Two, Named, Waves
    monkeypatch.setitem(sys.modules, "two_outputs", module)


def judged(*arms, mode="infer", by=1000.0, model="Two"):
    job = {"target": f"two_outputs:{model}", "options": {"by": by}, "inputs": ["4"], "seed": 0, "mode": mode}
    found = gate({**job, "arms": list(arms), "batch": 4, "steps": 1}, lambda *_: None)
    assert not found.failures
    return found.gates


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize("model", ["Two", "Named"])
def test_an_arm_that_is_wrong_in_its_second_output_alone_is_refused(model):
    (found,) = judged("cpu:bf16", model=model)
    checks = {check.name: check for check in found.checks}
    assert checks["outputs"].passed and not checks["output_1"].passed and not found.passed


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize("mode", ["infer", "train"])
def test_complex_numbers_are_judged_in_both_of_their_parts(mode):
    (wrong,) = judged("cpu:bf16", mode=mode, model="Waves")
    (right,) = judged("cpu", mode=mode, model="Waves", by=0.0)
    assert not next(check for check in wrong.checks if check.name == "outputs").passed and right.passed


@pytest.mark.usefixtures("models")
def test_a_right_arm_passes_with_all_that_can_be_compared():
    plain, short = judged("cpu", "cpu:bf16", by=0.0)
    assert plain.passed and {"outputs", "output_1", "output_2"} <= {check.name for check in plain.checks}
    names = {check.name for check in short.checks}
    assert short.passed and "output_1" in names, "classes may be ties, and -inf is no number to compare"
    assert not any(name.startswith(("output_2", "output_3")) for name in names)


@pytest.mark.usefixtures("models")
def test_a_training_is_judged_by_what_its_loss_sees():
    (found,) = judged("cpu", mode="train")
    assert found.passed and not any(check.name.startswith("output_") for check in found.checks)
