"""What a replayed step brings back, how the split moves, and what a user may ask for."""

import random

import numpy as np
import pytest
import torch
from fake_memory import FailingOperations, FakeMemory
from tiny_training import EFFECTIVE, assert_same, batches, losses, masked_loss, model_of, sgd, train
from torch import nn

from hotlap.base.errors import UsageError
from hotlap.engine.exact import ExactStep, StepLost

pytestmark = pytest.mark.usefixtures("many_runs")


def test_running_statistics_and_the_random_stream_are_those_of_one_attempt():
    data = batches(3)
    calm, disturbed = model_of("batchnorm"), model_of("batchnorm")
    train(calm, data, micro=6)
    after = torch.get_rng_state()
    memory = FailingOperations(inside="ReLU.forward", num_times=1)  # the statistics before it are already updated
    results, _ = train(disturbed, data, memory=memory)
    assert [r.num_splits for r in results] == [1, 0, 0]
    assert disturbed[1].num_batches_tracked.item() == 6  # two micro-batches in each of three steps
    assert_same(disturbed.state_dict(), calm.state_dict())
    assert torch.equal(torch.get_rng_state(), after)


class Drawing(nn.Module):
    """Counts what it has seen in a buffer that it replaces, and draws from every generator a model may use."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("later", None)
        self.layer = nn.Linear(8, 4).double()

    def forward(self, x):
        self.seen = self.seen + len(x)
        self.later = torch.ones(())
        return self.layer(x * (random.random() + np.random.rand() + torch.rand(())))


def test_replaced_buffers_and_every_generator_come_back():
    data = batches(2)
    found = []
    for memory in (None, FailingOperations(inside="Linear.forward")):
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(0)
        model = Drawing()
        results, _ = train(model, data, memory=memory, optimizer=sgd(model, lr=0.1), separable=False)
        found.append([losses(results), model.seen, torch.rand(3), random.random(), np.random.rand()])
    assert results[0].num_splits == 1 and found[1][1].item() == 2 * EFFECTIVE
    for got, want in zip(*found, strict=True):
        assert torch.equal(torch.as_tensor(got), torch.as_tensor(want))


def test_draws_of_a_forward_pass_are_told_once_they_are_seen():
    class Careless(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 4).double()

        def forward(self, x):
            return nn.functional.dropout(self.layer(x), 0.5, self.training)

    said: list[str] = []
    _, step = train(Careless(), batches(2), say=said.append)
    assert [finding.kind for finding in step.inexact()] == ["random numbers drawn by the forward pass"]
    assert len(said) == 1 and "functional.dropout" in said[0]
    _, step = train(model_of("dropout"), batches(2), say=said.append)
    assert step.inexact() == [] and len(said) == 1


def test_failures_of_the_picture_and_of_its_restoration_are_survived():
    data = batches(2)
    calm, model = model_of("batchnorm"), model_of("batchnorm")
    train(calm, data, micro=6)
    memory = FailingOperations({9}, inside="StepStart.restore")
    results, _ = train(model, data, memory=memory)
    assert memory.num_failures == 2 and [r.num_splits for r in results] == [1, 0]
    assert_same(model.state_dict(), calm.state_dict())
    model = model_of("batchnorm")
    results, _ = train(model, data, memory=FailingOperations(inside="StepStart.remember"))
    assert [r.num_splits for r in results] == [1, 0]
    assert_same(model.state_dict(), calm.state_dict())


def test_a_recovery_that_never_fits_is_a_lost_step():
    data = batches(1)
    memory = FailingOperations({9}, inside="StepStart.restore", num_times=3)
    with pytest.raises(StepLost, match=r"while the step's start was being restored: .*operation.*--resume"):
        train(model_of("batchnorm"), data, memory=memory)


def test_a_larger_micro_batch_is_tried_again_after_a_quiet_window():
    data = batches(12)
    model = model_of()
    step = ExactStep(model, sgd(model), masked_loss, regrow_after=4)
    with FailingOperations(inside="masked_loss"):
        assert step(data[0]).num_splits == 1
    assert [step(batch).micro for batch in data[1:8]] == [6, 6, 6, 6, 12, 12, 12]


def test_the_split_asked_for_is_never_outgrown():
    model = model_of()
    step = ExactStep(model, sgd(model), masked_loss, regrow_after=2, micro=4)
    assert {step(batch).micro for batch in batches(8)} == {4}


def test_a_failed_try_of_a_larger_one_waits_twice_as_long_and_costs_no_step():
    data = batches(14, size=48)
    calm, model, measured = model_of(), model_of(), model_of()
    curve, _ = train(calm, data, optimizer=sgd(calm, lr=0.1))
    memory = FakeMemory()
    train(measured, data, memory=memory, optimizer=sgd(measured, lr=0.1), micro=24)
    tight = FakeMemory(limit_bytes=memory.peak_bytes)
    results, _ = train(model, data, memory=tight, optimizer=sgd(model, lr=0.1), regrow_after=3)
    assert {r.micro for r in results} == {24}
    assert [i for i, r in enumerate(results) if r.num_splits] == [0, 4, 11]
    eps = torch.finfo(torch.float64).eps
    torch.testing.assert_close(losses(results), losses(curve), rtol=256 * eps, atol=0)  # 48 samples, 14 steps on


def test_a_failure_after_a_failed_try_still_splits_further():
    model = model_of()
    step = ExactStep(model, sgd(model), masked_loss, regrow_after=1, micro=None)
    data = batches(3)
    with FailingOperations(inside="masked_loss"):
        step(data[0])
    step(data[1])
    with FailingOperations(inside="masked_loss", num_times=2):
        result = step(data[2])
    assert result.num_splits == 2 and result.micro == 3


def test_the_split_survives_a_checkpoint():
    _, step = train(model_of("blocks"), batches(1), micro=3, recompute="on")
    _, fresh = train(model_of("blocks"), [])
    fresh.load_state_dict(step.state_dict())
    assert fresh.micro == 3 and fresh.recomputing and fresh.state_dict() == step.state_dict()


def test_a_compiled_model_is_called_until_recomputation_takes_over():
    called = []

    class Compiled(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            called.append(len(x))
            return self.inner(x)

    data, model = batches(1, size=1), model_of("blocks")
    compiled = Compiled(model)
    said: list[str] = []
    step = ExactStep(model, sgd(model), masked_loss, compiled=compiled, say=said.append)
    with FailingOperations(inside="Tensor.backward"):
        step(data[0])
    assert called == [1] and said[0] == "activation checkpointing is on, so the model is no longer compiled"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"micro": 0}, "micro = 0"),
        ({"precision": "fp8"}, "precision = 'fp8'"),
        ({"recompute": 1}, "recompute = 1"),
        ({"clip_norm": -1.0}, r"clip_norm = -1\.0"),
        ({"clip_norm": 0}, "clip_norm = 0"),
    ],
)
def test_wrong_settings_are_named(options, message):
    model = model_of()
    with pytest.raises(UsageError, match=message):
        ExactStep(model, sgd(model), masked_loss, **options)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda model, batch: model(batch).mean(), r"returned a Tensor\. Expected two things.*hotlap\.sum_of_mean"),
        (lambda model, batch: (model(batch).sum(),), r"returned a tuple of 1\. Expected two things"),
        (lambda model, batch: model(batch).sum().item(), r"returned a float\. Expected two things"),
        (lambda model, batch: (model(batch), len(batch)), r"a sum of shape \[5, 2\]\. Expected one number.*\.sum\(\)"),
    ],
)
def test_a_loss_that_is_no_sum_with_its_count_is_named(loss, words):
    model = nn.Linear(3, 2)
    step = ExactStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss)
    with pytest.raises(UsageError, match=words):
        step(torch.randn(5, 3))


def test_an_empty_batch_is_refused():
    model = model_of()
    step = ExactStep(model, sgd(model), masked_loss)
    with pytest.raises(UsageError, match="0 samples"):
        step((torch.zeros(0, 8), torch.zeros(0, dtype=torch.int64)))
