"""What an exact step asks of the device beside the passes themselves: each small operation is a launch on a card."""

import pytest
import torch
from fake_memory import FailingOperations
from tiny_training import batches, masked_loss, model_of, sgd

from hotlap.engine.exact import ExactStep
from hotlap.sequence.workload import bilstm

pytestmark = pytest.mark.usefixtures("many_runs")


def num_ops(work):
    with FailingOperations() as counted:
        work()
    return counted.num_ops


def extra_ops(model, loss, batch):
    """Operations of a step, the optimizer's apart, beside those of a bare loop."""
    optimizer = sgd(model)

    def bare():
        optimizer.zero_grad(set_to_none=True)
        total, count = loss(model, batch)
        (total / count).backward()

    plain = num_ops(bare)
    step = ExactStep(model, optimizer, loss)
    for _ in range(4):
        step.gradients(batch)
    return num_ops(lambda: step.gradients(batch)) - plain


def counted_loss(model, batch):
    total, count = masked_loss(model, batch)
    return total, int(count)


def test_a_step_without_dropout_adds_nothing():
    [batch] = batches(1)
    # A count that may be 0 is looked at and the loss is handed out, but nothing goes back through the division.
    assert extra_ops(model_of(), masked_loss, batch) <= 1


def test_a_count_that_is_a_number_takes_fewer_operations_than_a_bare_loop():
    [batch] = batches(1)
    assert extra_ops(model_of(), counted_loss, batch) <= -1


def test_dropout_that_belongs_to_samples_adds_a_dozen_operations_a_layer():
    texts = bilstm(hidden=4, embedding=4, length=32)
    batch = texts.make_batch(4, torch.device("cpu"), torch.Generator().manual_seed(0))
    assert extra_ops(texts.build_model(), texts.loss, batch) <= 13


@pytest.mark.parametrize("kind", ["plain", "batchnorm"])
def test_a_step_marks_nothing_for_a_profiler_but_the_optimizers_own_part(kind):
    """Each mark costs the host as much as several launches."""
    [batch] = batches(1)
    model = model_of(kind)
    step = ExactStep(model, sgd(model), masked_loss)
    step(batch)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        step(batch)
    marks = [event.name for event in seen.events() if event.name.startswith("Optimizer.")]
    assert [mark.split("#")[0] for mark in marks] == ["Optimizer.step"]
