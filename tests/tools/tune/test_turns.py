"""Configurations that take turns in one process: the machine's pace falls out, and the search rests on what is left."""

from __future__ import annotations

import dataclasses
import random
import statistics

import pytest
from simulated import Machine
from stored_noise import small_rate
from test_search import CARD

from hotlap.base.errors import WorkerDied
from hotlap.measure.arms import ArmSpec, parse_arm
from hotlap.measure.nursery import Nursery
from hotlap.tools.tune import TuneConfig, lab
from hotlap.tools.tune.budget import Budget
from hotlap.tools.tune.contest import Noise, can_take_turns, fell, have_met, in_doubt, who_meets
from hotlap.tools.tune.goal import Goal
from hotlap.tools.tune.rows import Config, Estimate, Row, estimates, turns_noise
from hotlap.tools.tune.search import Search
from hotlap.tools.tune.space import make_space
from hotlap.tools.tune.turns import at_one_pace, beside_others, error_of, fair_rates

KEPT = [ArmSpec(device="cpu", precision=p, fused=f, keep_memory=True) for p in ("fp32", "bf16") for f in (False, True)]
ARMS = [ArmSpec(device="cpu"), *KEPT]
SIZES = tuple(range(16, 200, 16))


def disturbed(seed, **times):
    """What each takes a sample, in turns that take from once to ten times as long for all."""
    rng = random.Random(seed)
    paces = [rng.uniform(1, 10) for _ in range(30)]
    return {one: [ms * pace for pace in paces] for one, ms in times.items()}


def test_what_a_turn_takes_longer_for_all_falls_out():
    found = disturbed(0, a=2.0, b=2.2)
    beside = beside_others(found)
    assert beside["b"] - beside["a"] == pytest.approx(0.0953, abs=1e-4), "the logarithm of 1.1"
    level = at_one_pace(found)
    assert max(level["a"]) == pytest.approx(min(level["a"])) and level["b"][0] == pytest.approx(1.1 * level["a"][0])
    assert error_of(found) == pytest.approx(0.0, abs=1e-9)


def test_turns_that_one_had_more_of_are_left_out():
    assert beside_others({"a": [1.0, 1.0, 9.0], "b": [2.0, 2.0]})["a"] == pytest.approx(-0.3466, abs=1e-4)


def test_the_error_is_that_of_a_median_over_turns():
    rng = random.Random(1)

    def found():
        return {one: [rng.lognormvariate(0.0, 0.1) for _ in range(100)] for one in ("a", "b")}

    many = [found() for _ in range(200)]
    seen = statistics.stdev(beside_others(one)["a"] for one in many)
    assert statistics.fmean(map(error_of, many)) == pytest.approx(seen, rel=0.15)


def test_rates_of_several_rounds_are_put_at_one_pace_and_keep_their_order():
    rounds = [disturbed(1, a=1.0, b=1.1), disturbed(2, b=3 * 1.1, c=3 * 1.2), disturbed(3, a=0.5, b=0.55, c=0.6)]
    rates = fair_rates(rounds, {"a": 700.0, "b": 1400.0, "c": 1000.0})
    assert rates["a"] == pytest.approx([rates["a"][0]] * 2) and rates["b"] == pytest.approx([rates["b"][0]] * 3)
    assert rates["a"][0] / rates["b"][0] == pytest.approx(1.1) and rates["a"][0] / rates["c"][0] == pytest.approx(1.2)
    assert 700 < rates["a"][0] < 1400, "as fast as the machine is, by what was measured alone"


def row(arm, rate, *, together=0, batch=64):
    walls = [1e3 * batch / rate] * 4
    return Row(stage="x", arm=arm, batch=batch, rung=0, together=together, wall_ms=walls, seconds=1.0)


def test_an_estimate_rests_on_turns_where_there_were_any():
    rows = [row("a", 100), row("b", 50), row("c", 60), row("a", 80, together=1), row("b", 88, together=1)]
    known = estimates(rows)
    a, b, c = (known[Config(arm, 64)] for arm in "abc")
    assert b.rate / a.rate == pytest.approx(1.1) and a.rate * b.rate == pytest.approx(100 * 50)
    assert (a.num_rounds, a.num_processes, c.num_rounds) == (1, 2, 0) and c.rate == pytest.approx(60)
    assert turns_noise(rows) == 0.01 and turns_noise(rows[:3]) is None
    assert have_met(a.config, b.config, rows) and not have_met(a.config, c.config, rows)


def test_only_kept_memory_on_a_cpu_is_shared():
    def can(*arms):
        return can_take_turns([Config(arm, 64) for arm in arms])

    assert can("cpu:keep_memory", "cpu:bf16+keep_memory") and not can("cpu:keep_memory")
    assert not can("cpu:keep_memory", "cpu") and not can("cuda", "cuda:bf16")


def one(arm, rate, rounds):
    return Estimate(
        config=Config(arm, 8), rate=rate, spread=0.0, peak_bytes=None, num_processes=rounds + 1, rows=[],
        num_rounds=rounds,
    )  # fmt: skip


def test_the_first_meets_those_in_doubt_that_are_least_known():
    noise = Noise(own=0.2, turns=0.01)
    field = in_doubt([one("a", 100, 1), one("b", 99, 1), one("c", 80, 0), one("d", 20, 0)], noise)
    assert [each.config.arm for each in field] == ["a", "b", "c"], "the last is behind, alone as it was timed"
    assert [config.arm for config in who_meets(field, noise, 4)] == ["a", "c"], "the second is known to be as good"
    assert in_doubt(field[:2], noise) == []
    wide = Noise(own=0.2, turns=0.05)
    assert [config.arm for config in who_meets(in_doubt(field, wide), wide, 2)] == ["a", "c"]


def contest(seed, pace):
    """What a search of a small training on two cores gives away, on a machine whose pace varies."""
    small = small_rate(seed)

    def rate(arm, batch):
        return small(arm, batch) * (1.0 if arm.keep_memory else 0.65)

    about = dataclasses.replace(CARD, default_batch=64, has_convolutions=False, num_cuda=0, can_keep_memory=True)
    machine = Machine(seed=seed, noise=0.01, rate=rate, pace=pace, trial_s=0.35)
    space = make_space(about, mode="train", arms=tuple(arm.name for arm in ARMS), batches=SIZES)
    outcome = Search(space, machine, Goal("throughput"), Budget(seconds=90.0, rung_seconds=0.3)).run()
    best = max(rate(arm, batch) for arm in ARMS for batch in SIZES)
    return 1 - rate(parse_arm(outcome.winner.arm), outcome.winner.batch) / best


@pytest.mark.parametrize("most", [1.0, 1.2, 1.6])
def test_a_machine_that_drifts_costs_the_search_next_to_nothing(most):
    lost = [contest(seed, lambda rng: rng.uniform(1.0, most)) for seed in range(24)]
    assert statistics.median(lost) <= 0.01 and statistics.fmean(lost) <= 0.015


class Slowing(Machine):
    """As fast as others until its first last run, and then slower by a third for good."""

    def _run(self, stage, config, rung, attempt, tail):
        if tail:
            self.pace = lambda rng: 1.5
        return super()._run(stage, config, rung, attempt, tail)


def test_a_last_run_on_a_machine_that_slowed_down_is_set_beside_a_trial_of_then():
    rate = {"cpu:keep_memory": 100.0, "cpu:fused+keep_memory": 104.0, "cpu": 60.0}
    machine = Slowing(noise=0.001, rate=lambda arm, batch: rate[arm.name])
    about = dataclasses.replace(CARD, default_batch=64, has_convolutions=False, num_cuda=0, can_keep_memory=True)
    space = make_space(about, mode="train", arms=tuple(rate), batches=(64,))
    outcome = Search(space, machine, Goal("throughput"), Budget(seconds=90.0, rung_seconds=0.3)).run()
    assert outcome.winner == Config("cpu:fused+keep_memory", 64)
    last = [(each.config.arm, bool(each.tail)) for each in machine.rows if each.stage == "confirm"]
    assert last == [("cpu:fused+keep_memory", True), ("cpu:fused+keep_memory", False)], (
        "nobody else's last run is asked"
    )
    assert not fell(estimates(machine.rows)[outcome.winner], outcome.confirmed, machine.rows)
    assert fell(estimates(machine.rows)[outcome.winner], outcome.confirmed, machine.rows[:-1]), "but for that trial"


def test_where_none_can_take_turns_processes_of_their_own_decide(monkeypatch):
    """As they did before: it is the turns that keep the machine's pace out of the choice."""
    machine = Machine(noise=0.0, rate=lambda arm, batch: 100.0 * (2 - arm.fused) * (1 + arm.keep_memory))

    def fail(stage, configs, *, rung, number):
        failed = [dataclasses.replace(row(c.arm, 1, together=number), status="failed", why="x") for c in configs]
        machine.rows += failed
        return failed

    monkeypatch.setattr(machine, "turns", fail)
    about = dataclasses.replace(CARD, default_batch=64, has_convolutions=False, num_cuda=0, can_keep_memory=True)
    space = make_space(about, mode="train", arms=tuple(arm.name for arm in ARMS), batches=SIZES)
    outcome = Search(space, machine, Goal("throughput"), Budget(seconds=90.0, rung_seconds=0.3)).run()
    assert {each.together for each in machine.rows} == {0, 1}, "one failure is enough"
    assert outcome.winner is not None and not parse_arm(outcome.winner.arm).fused


def laboratory(monkeypatch, earlier=(), **settings):
    config = TuneConfig(target="bilstm", workload={"hidden": 4, "length": 32, "embedding": 4}, mode="train", **settings)
    budget = Budget(seconds=600, rung_seconds=0.1)
    return lab.ProcessLab(config, budget, rows=earlier, saved=lambda: None, say=lambda text: None, nursery=NURSERY[0])


NURSERY: list[Nursery | None] = [None]


@pytest.fixture(scope="module", autouse=True)
def nursery():
    with Nursery() as NURSERY[0]:
        yield
    NURSERY[0] = None


def test_rows_of_turns_are_real_and_an_earlier_life_is_not_repeated(monkeypatch):
    pair = [Config("cpu:keep_memory", 4), Config("cpu:bf16+keep_memory", 2)]
    rows = laboratory(monkeypatch).turns("final", pair, rung=0, number=7)
    assert [each.config for each in rows] == pair and all(each.ok and each.together == 7 for each in rows)
    assert all(len(each.wall_ms) >= 3 and len(each.interval_ms) >= len(each.wall_ms) for each in rows)
    assert all(each.seconds > 0.1 and min(each.wall_ms) > 0 and each.interval_ms for each in rows)
    monkeypatch.setattr(lab, "run_job", None)
    again = laboratory(monkeypatch, earlier=rows)
    assert again.turns("final", pair[::-1], rung=0, number=7) == rows and again.all_rows == rows


def test_one_that_cannot_take_part_is_named_in_every_row(monkeypatch):
    pair = [Config("cpu:keep_memory", 4), Config("cpu:fused+keep_memory", 4)]
    monkeypatch.setattr(lab, "run_job", lambda job, **how: (_ for _ in ()).throw(WorkerDied("it died of SIGSEGV")))
    rows = laboratory(monkeypatch).turns("final", pair, rung=0, number=1)
    assert [(each.status, each.why) for each in rows] == [("failed", "in turns with others: it died of SIGSEGV")] * 2
    failed = {"failures": [{"arm": "cpu:fused", "what": "RuntimeError at batch 4: no"}]}
    monkeypatch.setattr(lab, "run_job", lambda job, **how: failed)
    rows = laboratory(monkeypatch).turns("final", pair, rung=0, number=1)
    assert rows[0].why == "in turns with others: cpu:fused: RuntimeError at batch 4: no"


def test_those_that_might_fill_the_memory_together_do_not_take_turns(monkeypatch):
    host = dataclasses.replace(lab.read_host(), memory_bytes=2**30, memory_limit_bytes=None)
    monkeypatch.setattr(lab, "read_host", lambda: host)
    laboratory_ = laboratory(monkeypatch)
    pair = [Config("cpu:keep_memory", 4), Config("cpu:bf16+keep_memory", 4)]
    laboratory_.rows += [dataclasses.replace(row(c.arm, 9, batch=4), peak_bytes=300 * 2**20) for c in pair]
    rows = laboratory_.turns("final", pair, rung=0, number=1)
    assert rows[0].why == "in turns with others: together they would fill 600 MiB of memory, and may 512 MiB"
