"""What a step's sums are divided by, and what its backward pass begins with."""

from __future__ import annotations

import re

import pytest
import torch
from tiny_training import assert_same, batches, masked_loss, model_of, sgd, weights
from torch import nn

from hotlap.base.errors import UsageError
from hotlap.engine.exact import ExactStep
from hotlap.engine.sums import drop_gradients, not_zero

pytestmark = pytest.mark.usefixtures("many_runs")


def counts(kind, num):
    kinds = {"number": int(num), "fraction": 0.3 * int(num), "tensor": num, "float64": num.double(), "share": num * 0.3}
    return num[None] if kind == "one of one" else kinds[kind]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", ["number", "fraction", "tensor", "float64", "share", "one of one"])
def test_steps_that_are_not_split_are_those_of_a_bare_loop_to_the_last_bit(kind, dtype, device):
    """With counts that change from step to step and come back."""

    def loss(model, batch):
        total, num = masked_loss(model, batch)
        return total, counts(kind, num)

    data = batches(3, device=device, dtype=dtype)
    data = [*data, data[0], (data[1][0][:5], data[1][1][:5])]
    mine, bare = (model_of(dtype=dtype).to(device) for _ in range(2))
    step, optimizer = ExactStep(mine, sgd(mine, lr=0.1), loss), sgd(bare, lr=0.1)
    for batch in data:
        optimizer.zero_grad(set_to_none=True)
        total, count = loss(bare, batch)
        mean = total / count
        mean.backward()
        optimizer.step()
        assert torch.equal(step(batch).loss, mean.detach())
    assert_same(weights(mine), weights(bare))


def test_a_loss_that_is_not_one_number_is_refused_with_its_shape():
    model = model_of()
    step = ExactStep(model, sgd(model), lambda m, b: (m(b[0]).sum(1), len(b[0])))
    with pytest.raises(UsageError, match=re.escape("a sum of shape [") + r".*Expected one number"):
        step(batches(1)[0])


@pytest.mark.parametrize(
    ("count", "want"),
    [(0, 1), (7, 7), (0.0, 1), (0.25, 0.25), (torch.tensor(0), 1), (torch.tensor(7), 7), (torch.tensor(0.0), 1),
     (torch.tensor(0.25), 0.25), (torch.tensor(0, dtype=torch.uint8), 1), (torch.tensor(False), 1)],
)  # fmt: skip
def test_only_a_count_of_nothing_is_changed(count, want):
    assert float(not_zero(count)) == want


def test_gradients_are_dropped_and_an_optimizer_with_a_way_of_its_own_is_asked():
    asked = []

    class Own(torch.optim.SGD):
        def zero_grad(self, set_to_none=True):
            asked.append(set_to_none)

    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    model = nn.ParameterList([nn.Parameter(torch.ones(2)), frozen, nn.Parameter(torch.ones(2))])
    for kind in (Own, torch.optim.SGD):
        model[0].sum().backward()
        drop_gradients(kind(model.parameters(), lr=1.0))
        assert (model[0].grad is None) == (kind is torch.optim.SGD)
    patched = torch.optim.SGD(model.parameters(), lr=1.0)
    patched.zero_grad = lambda set_to_none: asked.append("patched")
    drop_gradients(patched)
    assert asked == [True, "patched"]
