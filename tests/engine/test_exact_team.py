"""Processes that share a batch, played by threads: they agree on sums, on splits and on failures."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from fake_memory import FailingOperations
from tiny_training import EFFECTIVE, assert_same, batches, masked_loss, model_of, sgd, weights

from hotlap.engine.exact import ExactStep, StepLost

pytestmark = pytest.mark.usefixtures("many_runs")
LAST_BITS = 64 * torch.finfo(torch.float64).eps


class Table:
    """Where the threads put their values and read everybody's."""

    def __init__(self, size):
        self.barrier, self.values = threading.Barrier(size, timeout=60), [None] * size


class ThreadTeam:
    def __init__(self, table, rank):
        self.table, self.rank, self.size = table, rank, len(table.values)

    def _all(self, value):
        self.table.values[self.rank] = value
        self.table.barrier.wait()
        everybody = list(self.table.values)
        self.table.barrier.wait()
        return everybody

    def any_failed(self, failed):
        return any(self._all(failed))

    def smallest(self, value):
        return min(self._all(value))

    def total(self, value):
        return sum(self._all(value))

    def sum_gradients(self, parameters):
        everybody = self._all([None if p.grad is None else p.grad.clone() for p in parameters])
        for parameter, *parts in zip(parameters, *everybody, strict=True):
            parameter.grad = sum(part for part in parts if part is not None)


def train_together(shares, num_steps=2, memories=None, **options):
    """Each rank's model and results after training on its share of every batch; shares are (first, last) samples."""
    data, table = batches(num_steps), Table(len(shares))
    models = [model_of() for _ in shares]

    def work(rank):
        begin, end = shares[rank]
        model = models[rank]
        step = ExactStep(model, sgd(model, lr=0.1), masked_loss, team=ThreadTeam(table, rank), **options)
        with (memories or {}).get(rank, FailingOperations()):
            mine = [(x[begin:end], y[begin:end]) if end > begin else None for x, y in data]
            return [step(batch, first_sample=begin) for batch in mine]

    with ThreadPoolExecutor(len(shares)) as pool:
        return models, list(pool.map(work, range(len(shares))))


def train_alone(num_steps=2):
    model = model_of()
    step = ExactStep(model, sgd(model, lr=0.1), masked_loss)
    return model, [step(batch) for batch in batches(num_steps)]


@pytest.mark.parametrize("shares", [((0, 7), (7, 12)), ((0, 12), (12, 12)), ((0, 4), (4, 8), (8, 12))])
def test_a_team_does_what_one_process_does(shares):
    assert shares[-1][1] == EFFECTIVE
    alone, expected = train_alone()
    models, results = train_together(shares)
    for model, mine in zip(models, results, strict=True):
        assert_same(weights(model), weights(alone), rtol=LAST_BITS, atol=LAST_BITS)
        for got, want in zip(mine, expected, strict=True):
            assert got.loss.item() == pytest.approx(want.loss.item(), rel=LAST_BITS)
            assert int(got.count) == int(want.count)


def test_when_one_runs_out_of_memory_all_split_and_replay():
    alone, _ = train_alone()
    memories = {1: FailingOperations(inside="masked_loss", num_times=2)}
    models, results = train_together(((0, 7), (7, 12)), memories=memories)
    assert [[r.num_splits for r in mine] for mine in results] == [[2, 0], [2, 0]]
    assert [mine[-1].micro for mine in results] == [2, 2]  # 7 and 5, then 4, then 2 at most
    for model in models:
        assert_same(weights(model), weights(alone), rtol=LAST_BITS, atol=LAST_BITS)


def test_a_try_of_a_larger_split_is_made_and_given_up_by_all():
    memories = {0: FailingOperations(inside="masked_loss")}
    _, results = train_together(((0, 7), (7, 12)), num_steps=6, memories=memories, regrow_after=3)
    assert [[r.micro for r in mine] for mine in results] == [[4, 4, 4, 4, 7, 7], [3, 3, 3, 3, 5, 5]]


def test_memory_that_runs_out_after_gradients_were_shared_is_a_lost_step():
    memories = {rank: FailingOperations(inside="scale_gradients", num_times=9) for rank in (0, 1)}
    with pytest.raises(StepLost, match="after the processes had shared gradients"):
        train_together(((0, 7), (7, 12)), memories=memories)
