"""The learning rate over the steps, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from hotlap.engine.schedule import Schedule


def make(kind: str, *, warmup: int = 0, total: int = 10, rates=(0.1,)) -> tuple[Schedule, torch.optim.Optimizer]:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates]
    optimizer = torch.optim.SGD(groups)
    return Schedule(optimizer, kind=kind, warmup=warmup, total=total), optimizer


def test_constant_after_a_linear_warm_up():
    schedule, _ = make("constant", warmup=4)
    assert [schedule.share(step) for step in range(7)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0]


def test_cosine_falls_from_the_full_rate_to_zero_at_the_end():
    schedule, _ = make("cosine", warmup=2, total=10)
    shares = [schedule.share(step) for step in range(11)]
    assert shares[:3] == [0.5, 1.0, 1.0]
    assert shares[6] == pytest.approx(0.5)
    assert shares[4] == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))
    assert shares[10] == pytest.approx(0.0, abs=1e-15)
    assert shares[2:] == sorted(shares[2:], reverse=True)
    assert schedule.share(99) == pytest.approx(0.0, abs=1e-15)


def test_a_cosine_that_is_to_end_elsewhere_comes_to_zero_there():
    schedule, _ = make("cosine", warmup=2, total=1000)
    assert schedule.share(6) == pytest.approx(1.0, abs=1e-4)
    schedule.end_at(10)
    assert schedule.share(6) == pytest.approx(0.5)
    assert schedule.share(10) == pytest.approx(0.0, abs=1e-15)


def test_every_group_keeps_its_own_full_rate():
    schedule, optimizer = make("constant", warmup=2, rates=(0.1, 0.01))
    assert schedule.apply(0) == pytest.approx(0.05)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.05, 0.005])
    schedule.apply(5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.01]


def test_a_rate_that_is_a_tensor_stays_one():
    schedule, optimizer = make("constant", warmup=2)
    rate = optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    schedule.apply(0)
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(0.05)


def test_a_plateau_divides_the_rate_after_three_evaluations_without_a_better_one():
    schedule, optimizer = make("plateau")
    heard = [schedule.evaluated(better=better) for better in (True, False, False, True, False, False, False, False)]
    assert heard == [False] * 6 + [True, False]
    schedule.apply(9)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


def test_only_the_plateau_schedule_listens_to_evaluations():
    schedule, _ = make("cosine", total=100)
    assert not any(schedule.evaluated(better=False) for _ in range(10))
    assert schedule.share(0) == 1.0


def test_a_resumed_schedule_goes_on_counting_and_takes_a_new_full_rate():
    schedule, _ = make("plateau")
    for better in (False, False, False, False, False):
        schedule.evaluated(better=better)
    resumed, optimizer = make("plateau", rates=(0.5,))
    resumed.load_state_dict(schedule.state_dict())
    resumed.apply(3)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    assert resumed.evaluated(better=False)
