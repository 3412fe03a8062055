"""A user's own loop: converted, it gives the same weights to the last bit, and goes on when memory runs out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import hotlap
from hotlap.base.errors import UsageError

DOCUMENT = Path(__file__).parents[2] / "docs" / "own-loop.md"


def make(device, dtype=torch.float32):
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3)).to(device, dtype)
    x, y = torch.randn(60, 6, dtype=dtype).to(device), torch.randint(0, 3, (60,)).to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2), x, y


def batches(x, y, size):
    return list(zip(x.split(size), y.split(size), strict=True))


def bare_loop(device, size, dtype=torch.float32):
    model, optimizer, x, y = make(device, dtype)
    losses = []
    for inputs, targets in batches(x, y, size):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), nn.utils.parameters_to_vector(model.parameters())


def mean_loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def converted_loop(device, size, dtype=torch.float32, prepare=lambda model: None, **settings):
    model, optimizer, x, y = make(device, dtype)
    prepare(model)
    step = hotlap.ExactStep(model, optimizer, hotlap.sum_of_mean(mean_loss), **settings)
    results = [step(batch) for batch in batches(x, y, size)]
    losses = torch.stack([result.loss for result in results])
    return losses, nn.utils.parameters_to_vector(model.parameters()), results


@pytest.mark.parametrize("size", [1, 7, 49, 60])  # 1/49 * 49 is not 1 in float32
def test_a_converted_loop_gives_the_same_bits(device, size):
    losses, weights = bare_loop(device, size)
    got_losses, got_weights, _ = converted_loop(device, size)
    assert torch.equal(got_weights, weights)
    assert torch.equal(got_losses.float(), losses)


def test_a_converted_loop_in_parts_gives_the_same_weights(device):
    losses, weights = bare_loop(device, 13, torch.float64)
    got_losses, got_weights, results = converted_loop(device, 13, torch.float64, micro=3)
    assert results[0].num_micro == 5
    # Only the order of additions differs, in float64.
    torch.testing.assert_close(got_losses.double(), losses, rtol=1e-6, atol=0)
    torch.testing.assert_close(got_weights, weights, rtol=1e-9, atol=1e-12)


class FailsAtRandom:
    """Memory that runs out in about a third of all passes, forward or backward, while more than two samples are in."""

    def __init__(self, seed):
        self.dice, self.num_failed = torch.Generator().manual_seed(seed), 0

    def __call__(self, model):
        model[1].register_forward_hook(self._forward)

    def _strike(self, share):
        if torch.rand((), generator=self.dice) < share:
            self.num_failed += 1
            raise torch.OutOfMemoryError("CUDA out of memory. (injected)")

    def _forward(self, module, inputs, output):
        if len(output) > 2:
            self._strike(0.2)
            output.register_hook(lambda gradient: self._strike(0.2))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_converted_loop_survives_memory_running_out(device, seed):
    _, weights = bare_loop(device, 13, torch.float64)
    fails = FailsAtRandom(seed)
    _, got_weights, results = converted_loop(device, 13, torch.float64, prepare=fails, regrow_after=1)
    assert fails.num_failed == sum(result.num_splits for result in results) > 0
    torch.testing.assert_close(got_weights, weights, rtol=1e-9, atol=1e-12)


def test_tokens_are_weighed_by_their_own_count(device):
    torch.manual_seed(0)
    model = nn.Linear(4, 5).double().to(device)
    x, labels = torch.randn(6, 9, 4).double().to(device), torch.randint(0, 5, (6, 9)).to(device)
    labels[1:4] = -100  # whole parts without a token: their mean is 0 / 0
    labels[0, :8] = -100

    def mean_over_tokens(model, batch):
        return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    mean_over_tokens(model, (x, labels)).backward()
    want = model.weight.grad.clone()
    loss = hotlap.sum_of_mean(mean_over_tokens, count=lambda batch: (batch[1] != -100).sum())
    for micro in (6, 2, 1):
        step = hotlap.ExactStep(model, torch.optim.SGD(model.parameters()), loss, micro=micro)
        assert step.gradients((x, labels)).num_micro == 6 // micro
        torch.testing.assert_close(model.weight.grad, want, rtol=1e-10, atol=1e-14)


def test_gradients_alone_leave_the_weights(device):
    model, optimizer, x, y = make(device)
    before = nn.utils.parameters_to_vector(model.parameters()).clone()
    hotlap.ExactStep(model, optimizer, hotlap.sum_of_mean(mean_loss)).gradients((x, y))
    assert torch.equal(nn.utils.parameters_to_vector(model.parameters()), before)
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


@pytest.mark.parametrize(
    ("returned", "words"),
    [(0.5, "returned float. Expected a tensor"), (torch.zeros(4), r"a tensor of shape \[4\]. Expected one number")],
)
def test_a_loss_that_is_no_mean_is_refused(returned, words):
    model, optimizer, x, y = make("cpu")
    step = hotlap.ExactStep(model, optimizer, hotlap.sum_of_mean(lambda model, batch: returned))
    with pytest.raises(UsageError, match=words):
        step((x, y))


def test_the_two_loops_of_the_document_end_with_the_same_weights():
    before, after = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), flags=re.DOTALL)[:2]
    assert "ExactStep" not in before and "ExactStep" in after
    names: list[dict] = [{}, {}]
    for code, space in zip((before, after), names, strict=True):
        exec(code, space)
    one, other = (nn.utils.parameters_to_vector(space["model"].parameters()) for space in names)
    assert torch.equal(one, other)
    assert torch.equal(names[0]["loss"], names[1]["loss"].float())
