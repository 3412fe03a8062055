"""A budget that holds: what hangs is ended in time for the winner's last run, what is slow and needed is not."""

from __future__ import annotations

import dataclasses
import time

import pytest
from simulated import Machine
from test_search import CARD

from hotlap.base.errors import WorkerDied
from hotlap.measure.nursery import COMPILERS
from hotlap.records.environment import capture
from hotlap.records.run import begin, load_record, run_folder, save
from hotlap.tools.tune import TuneConfig, lab, tune
from hotlap.tools.tune import budget as budgets
from hotlap.tools.tune.budget import Budget
from hotlap.tools.tune.config import cut_short
from hotlap.tools.tune.goal import Goal
from hotlap.tools.tune.rows import Config, GateRow, Row
from hotlap.tools.tune.run import _imported_first
from hotlap.tools.tune.search import Search
from hotlap.tools.tune.space import make_space

HANGS = "the process was stopped after timeout_s = {}"


def config(**settings):
    return TuneConfig(target="tiny.py:mlp", input=("4",), **settings)


def laboratory(budget, **settings):
    return lab.ProcessLab(config(**settings), budget, saved=lambda: None, say=lambda text: None)


def row(seconds, arm="cpu", batch=4, **more):
    return Row(stage="arms", arm=arm, batch=batch, rung=0, wall_ms=[1.0], seconds=seconds, **more)


@pytest.fixture
def limits(monkeypatch):
    """The time limits that processes were started with; all of them hang."""
    found = []

    def hang(job, *, timeout_s, **options):
        found.append(timeout_s)
        raise WorkerDied(HANGS.format(timeout_s))

    monkeypatch.setattr(lab, "run_job", hang)
    return found


def test_a_trial_that_hangs_is_ended_in_time_for_a_last_run_and_says_so(limits):
    room = laboratory(Budget(seconds=60, rung_seconds=0.5))
    room.rows = [row(5.0)]
    died = room.trial("arms", Config("cpu:bf16", 4), rung=0, attempt=0, tail=0)
    assert limits == [60.0 - 5.0 - (4.5 + 1.5 + 8.0)] and died.status == "out of budget"
    assert died.why == "the budget of 60 s ended it after 41 s; --budget gives it longer"


@pytest.mark.parametrize(
    ("ran", "kept"),
    [
        ([row(5.0)], 4.5 + 1.5 + 8.0 + 3.0),
        ([row(5.0), row(30.0, arm="cpu:compile")], 29.5 + 1.5 + 8.0 + 15.0),
        ([row(5.0), row(5.0, arm="cpu:compile")], 4.5 + 1.5 + 8.0 + 3.0),
        ([row(5.0), row(30.0, arm="cpu:compile", status="failed")], 4.5 + 1.5 + 8.0 + 3.0),
        ([row(30.0, arm="cpu:compile"), row(5.0)], 29.5 + 1.5 + 8.0 + 15.0),
    ],
)
@pytest.mark.parametrize("arm", ["cpu:bf16", "cpu:bf16+compile"])
def test_what_is_kept_back_is_the_dearest_last_run_of_those_that_ran_and_a_gate(ran, kept, arm):
    """Not that of the trial which hangs: it will not win. The gate of a compiled one compiles again."""
    room = laboratory(Budget(seconds=300, rung_seconds=0.5))
    room.rows = list(ran)
    room.gates = {name: GateRow(arm=name, passed=True, error=0.1, seconds=s) for name, s in (("a", 3.0), ("b", 2.0))}
    life = room.budget.trial_life(room, Config(arm, 4), 0, gate_batch=4, last=False)
    assert life == pytest.approx(300.0 - room.budget.spent(room) - kept)


@pytest.mark.parametrize(("batch", "rung", "expected"), [(8, 0, 4.0), (8, 1, 5.0), (4, 1, 20.0)])
def test_a_trial_may_take_twice_what_it_is_expected_to_whatever_is_left(limits, batch, rung, expected):
    """A configuration that ran is expected to take what it took."""
    room = laboratory(Budget(seconds=40, rung_seconds=0.5))
    room.rows = [row(20.0), *[row(4.0, batch=2)] * 4]
    room.trial("final", Config("cpu", batch), rung=rung, attempt=1, tail=0)
    assert limits == [2 * expected]


def test_those_that_take_turns_and_hang_are_ended_in_time_for_a_last_run_too(limits):
    room = laboratory(Budget(seconds=60, rung_seconds=0.5))
    for seconds in (5.0, 21.0):
        room.rows = [row(seconds, arm=arm) for arm in ("cpu:keep_memory", "cpu:bf16+keep_memory")]
        room.turns("final", [one.config for one in room.rows], rung=0, number=1)
    assert limits == [60.0 - 10.0 - (4.5 + 1.5 + 8.0), 2 * 42.0]


def searched(budget_s, hangs, earlier=()):
    """The laboratory of a search on a simulated card, on which arms with that word in their names never end."""
    budget = Budget(seconds=budget_s, rung_seconds=0.5)
    machine = Machine(budget=budget, ends=lambda config, rung: "out of budget" if hangs in config.arm else "ok")
    machine.earlier = list(earlier)
    space = make_space(CARD, mode="train", graphs="on", batch=16)
    outcome = Search(space, machine, Goal("throughput"), budget).run()
    assert outcome.confirmed is not None and outcome.confirmed.ok
    return machine


@pytest.mark.parametrize("hangs", ["max-autotune", "reduce-overhead", "cudnn_benchmark", "fp16"])
def test_a_search_whose_trial_never_ends_ends_within_its_budget(hangs):
    """The last of the compiled forms lived for all that was left, and gates and the winner's last run came on top."""
    machine = searched(300.0, hangs)
    hung = [one for one in machine.rows if not one.ok]
    assert hung and all(one.status == "out of budget" for one in hung)
    assert budgets.spent(machine.rows, machine.gates) <= 300.0


@pytest.mark.parametrize(("hangs", "trial_s"), [("max-autotune", 20.5), ("fp16", 5.5)])
def test_whatever_the_budget_a_trial_that_never_ends_costs_no_more_than_a_trial_beyond_it(hangs, trial_s):
    """One that begins when it is only just afforded may take twice what it is expected to."""
    found = {budget: searched(float(budget), hangs) for budget in range(30, 700, 10)}
    over = [budgets.spent(one.rows, one.gates) - s for s, one in found.items() if not all(r.ok for r in one.rows)]
    assert len(over) > 40 and max(over) <= trial_s


def test_a_search_that_goes_on_tries_again_what_its_budget_ended_if_it_has_a_longer_one():
    short = searched(300.0, "max-autotune")
    same = searched(300.0, "max-autotune", short.rows)
    assert same.num_run == 0 and same.rows == short.rows
    longer = searched(600.0, "never", [one for one in short.rows if one.ok])
    assert any("max-autotune" in one.arm and one.ok for one in longer.rows) and all(one.ok for one in longer.rows)


def test_a_time_limit_shorter_than_the_budget_is_what_ends_a_trial(limits):
    room = laboratory(Budget(seconds=60, rung_seconds=0.5), timeout_s=3.0)
    died = room.trial("arms", Config("cpu", 4), rung=0, attempt=0, tail=0)
    assert limits == [3.0] and died.status == "timed out" and "timeout_s = 3" in died.why


def test_the_first_trial_gets_what_the_gate_lets_expect_beyond_the_budget(limits):
    """One slow sample at the gate is a slow first trial of many samples: no sign of a process that hangs."""
    room = laboratory(Budget(seconds=10, rung_seconds=0.5), timeout_s=900.0)
    room.gates = {"cpu": GateRow(arm="cpu", passed=True, error=0.1, seconds=2.0)}
    room.trial("scout", Config("cpu", 4), rung=0, attempt=0, tail=0)
    room.gates = {"cpu": GateRow(arm="cpu", passed=True, error=0.1, seconds=40.0)}
    room.trial("scout", Config("cpu", 16), rung=0, attempt=0, tail=0)
    assert limits == [8.0 + budgets.GRACE_S, pytest.approx(2 * 160)]


def test_the_last_run_outlives_a_budget_that_is_spent(limits):
    room = laboratory(Budget(seconds=10, rung_seconds=0.5), timeout_s=900.0)
    room.rows = [row(50.0)]
    died = room.trial("confirm", Config("cpu", 4), rung=1, attempt=0, tail=3)
    assert limits == [pytest.approx(2 * (49.5 + 1.5 + 8.0))] and died.status == "out of budget"


@pytest.mark.parametrize(("stage", "is_afforded"), [("batch", False), ("arms", True), ("switches", True)])
def test_the_leaders_batch_is_searched_with_what_the_stages_before_have_left(stage, is_afforded):
    """A share of a third for all batches was spent before the leader was known, and its own size was never tried."""
    room = laboratory(Budget(seconds=100, rung_seconds=0.5))
    room.rows = [dataclasses.replace(row(8.0), stage=name) for name in (*["batch"] * 5, stage)]
    assert room.budget.affords(room, Config("cpu:bf16", 8), 0, "batch") == is_afforded


@pytest.mark.parametrize(("stage", "is_afforded"), [("arms", False), ("switches", True)])
def test_a_number_format_is_raced_again_with_what_the_stages_before_have_left(stage, is_afforded):
    room = laboratory(Budget(seconds=100, rung_seconds=0.5))
    room.rows = [dataclasses.replace(row(8.0), stage=name) for name in (*["batch"] * 6, stage)]
    assert room.budget.affords(room, Config("cpu:bf16", 8), 0, "arms") == is_afforded


def test_a_second_last_run_is_not_asked_to_leave_room_for_a_third():
    room = laboratory(Budget(seconds=50, rung_seconds=0.5))
    room.rows = [row(5.0), row(32.0, batch=8)]
    needed = room.budget.enough(room, Config("cpu", 4), 1, "confirm")
    assert needed == pytest.approx(37.0 + (32.0 - 0.5) + 1.5 + 8.0)
    assert needed < room.budget.enough(room, Config("cpu", 4), 1, "final")


@pytest.mark.parametrize(("seconds", "warm_up"), [(10, 0.5), (60, 3.0), (300, 5.0)])
def test_a_short_budget_is_not_spent_on_warming_up(monkeypatch, seconds, warm_up):
    asked = []
    monkeypatch.setattr(lab, "run_job", lambda job, **options: asked.append(job["warmup_seconds"]) or TRIAL)
    laboratory(Budget(seconds=seconds, rung_seconds=0.5)).trial("x", Config("cpu", 4), rung=0, attempt=0, tail=0)
    assert asked == [warm_up]


@pytest.mark.parametrize(
    ("given", "modules"),
    [
        ({}, COMPILERS),
        ({"compile": ("none",)}, COMPILERS[:1]),
        ({"compile": ("none",), "mode": "infer"}, ()),
        ({"budget": "30s"}, COMPILERS[:1]),
        ({"budget": "30s", "mode": "infer"}, ()),
    ],
)
def test_a_search_that_will_not_compile_does_not_wait_for_compilers(given, modules):
    assert _imported_first(config(**given)) == modules


@pytest.mark.parametrize(
    ("said", "refused", "asked"),
    [
        ([], ["cuda", "cuda:bf16", "cuda:fp16"], [3]),
        (["float64 reference"], ["cuda", "cuda:bf16", "cuda:fp16"], [3]),
        (["float64 reference", "gate cuda", "gate cuda:bf16"], ["cuda:bf16"], [3, 2]),
    ],
)
def test_a_gate_that_hangs_refuses_what_it_hangs_over(monkeypatch, said, refused, asked):
    calls = []

    def hang(job, *, timeout_s, each_word, listen, **options):
        calls.append(len(job["arms"]))
        assert each_word and timeout_s == budgets.GRACE_S
        if len(calls) > 1:
            gates = [{"arm": arm, "passed": True, "checks": [CHECK], "reference": ""} for arm in job["arms"]]
            return {"gates": gates, "failures": []}
        for text in said:
            listen(text, 0, 4)
            listen(text, 0, 4)
        raise WorkerDied(HANGS.format(timeout_s))

    monkeypatch.setattr(lab, "run_job", hang)
    told = []
    room = lab.ProcessLab(config(), Budget(seconds=10, rung_seconds=0.5), saved=lambda: None, say=told.append)
    room.gate(["cuda", "cuda:bf16", "cuda:fp16"])
    assert calls == asked and [name for name, gate in room.gates.items() if not gate.passed] == refused
    why = "the budget of 10 s ended it after 60 s without a sign of life; --budget gives it longer"
    assert {gate.why for gate in room.gates.values() if not gate.passed} == {f"could not be judged: {why}"}
    assert len(told) == 1 + len(said), "a step more of the same is no news"


TRIAL = {"arm": "cpu", "batch": 4, "wall_ms": [1.0], "interval_ms": [1.0], "first_step_s": 1.0, "memory": {}}
CHECK = {"name": "outputs", "error": 0.1, "allowed": 1.0, "passed": True}


def test_a_longer_budget_or_time_limit_tries_again_what_the_shorter_one_ended(tmp_path):
    record = begin("tune", "x", config(budget="1m", timeout_s=9.0), {}, capture(import_torch=False, ask_driver=False))
    record = load_record(save(record, run_folder(tmp_path, "x")).path)
    assert cut_short(record, config(budget="1m", timeout_s=9.0)) == set()
    assert cut_short(record, config(budget="2m", timeout_s=9.0)) == {"out of budget"}
    assert cut_short(record, config(budget="30s", timeout_s=10.0)) == {"timed out"}


TINY = """
import time
from torch import nn

def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))

def stuck():
    time.sleep(600)
"""


def test_a_process_that_hangs_is_really_ended_with_the_budget(tmp_path, monkeypatch):
    (tmp_path / "tiny.py").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    settings = config(timeout_s=500.0)
    room = lab.ProcessLab(
        dataclasses.replace(settings, target="tiny.py:stuck"), Budget(seconds=8, rung_seconds=0.1),
        saved=lambda: None, say=lambda text: None,
    )  # fmt: skip
    room.rows = [row(5.0)]
    began = time.monotonic()
    died = room.trial("arms", Config("cpu:bf16", 4), rung=0, attempt=0, tail=0)
    assert died.status == "out of budget" and time.monotonic() - began < 100


@pytest.mark.usefixtures("jobs_in_process")
def test_a_search_goes_on_after_its_budget_has_ended_a_trial(tmp_path, monkeypatch):
    (tmp_path / "tiny.py").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    real, hung = lab.run_job, []

    def hangs_once(job, *, timeout_s, **options):
        if job.get("batch") == 64 and not hung:
            hung.append(timeout_s)
            raise WorkerDied(HANGS.format(timeout_s))
        return real(job, timeout_s=timeout_s, **options)

    monkeypatch.setattr(lab, "run_job", hangs_once)
    given = {"mode": "infer", "arms": ("cpu",), "batches": (16, 64), "seconds": 0.002, "warmup_seconds": 0.01}
    record = tune(config(**given, budget="150s"))
    rows = record.extra["tune"]["rows"]
    assert [(r["batch"], r["status"]) for r in rows if not r["tail"]][:2] == [(16, "ok"), (64, "out of budget")]
    assert record.extra["tune"]["winner"] == {"arm": "cpu", "batch": 16} and 0 < hung[0] <= 150
    assert any("at batch 64 out of budget: the budget of 150 s" in line for line in record.verdict.lines)
    longer = tune(config(**given, budget="10m", resume="latest"))
    assert {row["status"] for row in longer.extra["tune"]["rows"]} == {"ok"}
