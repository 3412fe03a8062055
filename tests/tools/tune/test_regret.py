"""The search against whole grids, on machines drawn at random: little is given away, for a fraction of the time."""

from __future__ import annotations

import dataclasses
import statistics

import pytest
from random_machines import contest, recorded_arms
from stored_noise import small_contest, stored_day
from test_search import CARD

MACHINES = range(24)
CONV, PLAIN = recorded_arms(), recorded_arms((False,))
KERNELS = [dataclasses.replace(arm, kernels=on) for arm in PLAIN for on in (False, True)]
COMPILED = [dataclasses.replace(arm, compile="default") for arm in CONV if not arm.graph]


@pytest.mark.parametrize(
    ("arms", "noise", "budget"),
    [(CONV, 0.01, 60.0), (CONV, 0.03, 90.0), (KERNELS, 0.01, 60.0), ([*CONV, *COMPILED], 0.01, 300.0)],
    ids=["conv", "noisy", "kernels", "compiled"],
)
def test_the_regret_is_small_at_a_quarter_of_the_grids_time(arms, noise, budget):
    found = [contest(seed, CARD, arms=arms, batches=(16, 64, 256), noise=noise, budget=budget) for seed in MACHINES]
    assert statistics.median(one.regret for one in found) <= 0.01
    assert statistics.quantiles((one.regret for one in found), n=10)[-1] <= (0.03 if noise < 0.02 else 0.06)
    assert statistics.median(one.share for one in found) <= 0.25
    assert max(one.share for one in found) <= (0.30 if noise < 0.02 else 0.35)
    assert all(row.batch in (16, 64, 256) for one in found for row in one.rows)


def test_where_launches_decide_arms_are_raced_as_recorded_steps():
    found = [contest(seed, CARD, arms=CONV, batches=(16, 64, 256)) for seed in MACHINES]
    bound = [one for one in found if "graph" in one.best.arm and one.best.batch == 256]
    raced = [sum("graph" in row.arm for row in one.rows if row.stage == "arms") for one in bound]
    assert max(raced) >= 4, "several arms are compared in that form"
    assert min(sum("graph" in row.arm for row in one.rows) for one in found) >= 1, "and it is never left out"


@pytest.mark.parametrize("day", ["first", "second"])
def test_on_two_cores_with_the_noise_that_was_measured_there_the_bar_is_kept(day):
    about = dataclasses.replace(CARD, default_batch=64, has_convolutions=False, num_cuda=0)
    found = [small_contest(seed, stored_day(day), about) for seed in range(120)]
    assert statistics.median(one.regret for one in found) <= 0.03
    assert statistics.mean(one.regret for one in found) <= 0.04
    assert statistics.mean(one.share for one in found) <= 0.25
    assert statistics.quantiles((one.share for one in found), n=10)[-1] <= 0.29
