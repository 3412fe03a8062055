"""What cannot be recorded, seen beforehand or refused by the driver: said once, and the training goes on."""

import random

import pytest
import torch
from fake_recorder import adam, step_of
from tiny_training import assert_same, batches, losses, masked_loss, model_of, sgd, weights
from tiny_workload import Tiny
from torch import nn

from hotlap.base.errors import UsageError
from hotlap.engine.config import TrainConfig
from hotlap.engine.exact import ExactStep
from hotlap.engine.graphs import EAGER_FIRST
from hotlap.engine.loop import Trainer

pytestmark = pytest.mark.usefixtures("many_runs")


class Draws(nn.Module):
    def forward(self, x):
        return x * (1 + random.random())


class Replaces(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        self.seen = self.seen + 1
        return x


REFUSED = {
    "draws": (lambda: [nn.Linear(8, 4), Draws()], "a pass draws random numbers on the host"),
    "replaces": (lambda: [nn.Linear(8, 4), Replaces()], "Replaces replaces its buffer 'seen' in a pass"),
    "odd": (lambda: [nn.Linear(8, 4), Odd()], "dropout meets rows that do not go by sample"),
}


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return x * self.dropout(torch.ones(7, 1, dtype=x.dtype)).sum()


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_recorded_goes_on_eagerly_and_says_why(kind, recorders):
    make, why = REFUSED[kind]
    data, found = batches(EAGER_FIRST + 3), []
    for recorded in (False, True):
        torch.manual_seed(0)
        random.seed(0)
        model = nn.Sequential(*make()).double()
        recorders.model, said = model, []
        step = ExactStep(model, adam(model), masked_loss, graph=recorded, say=said.append)
        found.append((losses([step(batch) for batch in data]), dict(model.state_dict())))
    assert f"passes run one by one, not as CUDA graphs, because {why}" in said
    assert step.num_replays == 0 and step.graphs.why_not == why
    assert torch.equal(found[1][0], found[0][0])
    assert_same(found[1][1], found[0][1])


def test_a_compiled_model_is_recorded_as_compiled(recorders):
    ran = []

    def backend(graph, example):
        return lambda *given: ran.append(1) or graph(*given)

    model = model_of("dropout")
    step, said = step_of(model, recorders, compiled=torch.compile(model, backend=backend, dynamic=False))
    for batch in batches(EAGER_FIRST + 2):
        step(batch)
    assert (step.num_replays, said) == (2, [])
    assert len(ran) == EAGER_FIRST + 1 + 2  # the passes, the recording and its replays, none of them uncompiled


def test_sparse_gradients_are_refused_by_name(recorders):
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True)).double()
    step, said = step_of(
        model, recorders, loss=lambda m, b: (m(b).square().sum(), len(b)), optimizer=sgd(model, lr=0.1)
    )
    for _ in range(EAGER_FIRST):
        step(torch.arange(6))
    assert said == ["passes run one by one, not as CUDA graphs, because the gradient of 0.weight is sparse"]


class FromHost(nn.Module):
    """Brings its constants from the host in every pass; a device without memory stands in for a card."""

    def forward(self, x):
        torch.ones(3).to("meta", non_blocking=True)
        return x


def test_a_pass_that_copies_from_the_host_is_refused(recorders):
    step, said = step_of(nn.Sequential(model_of(), FromHost()), recorders)
    for batch in batches(EAGER_FIRST + 1):
        step(batch)
    assert step.num_replays == 0
    assert said == [
        "passes run one by one, not as CUDA graphs, because a pass copies a tensor of shape [3] from the host"
    ]


def test_a_recording_that_the_driver_refuses_is_not_the_end(recorders):
    data = batches(EAGER_FIRST + 3)
    model, calm = model_of("dropout"), model_of("dropout")
    step, said = step_of(model, recorders)
    for batch in data[:EAGER_FIRST]:
        step(batch)
    recorders.all[-1].fails.append(RuntimeError("CUDA error: operation not permitted\nmore"))
    for batch in data[EAGER_FIRST:]:
        step(batch)
    assert said == [
        "passes run one by one, not as CUDA graphs, because recording one failed: CUDA error: operation not permitted"
    ]
    step = ExactStep(calm, adam(calm), masked_loss)
    torch.manual_seed(5)
    for batch in data:
        step(batch)
    assert_same(weights(model), weights(calm))


def test_activation_checkpointing_ends_recording(recorders):
    step, said = step_of(model_of("blocks"), recorders, recompute="on")
    assert said == ["passes run one by one, not as CUDA graphs, because activation checkpointing is on"]
    assert step.graphs.why_not


def test_a_model_on_the_cpu_is_refused():
    model = model_of()
    with pytest.raises(UsageError, match=r"graph = True with a model on cpu.*Leave --graph \(graph=True\) out"):
        ExactStep(model, adam(model), masked_loss, graph=True)


def test_a_training_on_the_cpu_is_refused_before_it_begins(tmp_path):
    config = TrainConfig(target="tiny", device="cpu", graph=True)
    with pytest.raises(UsageError, match="graph = True with a model on cpu"):
        Trainer(Tiny(), config, tmp_path, torch.device("cpu"))
