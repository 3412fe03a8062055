"""What the laboratory asks of its processes, and what a row says of the compiler."""

from __future__ import annotations

import dataclasses

import pytest

from hotlap.base.errors import OutOfMemory, WorkerDied
from hotlap.measure.jobs import ArmFailure, Gates
from hotlap.records.codec import encode
from hotlap.tools.tune import TuneConfig, lab
from hotlap.tools.tune.budget import Budget
from hotlap.tools.tune.goal import Goal
from hotlap.tools.tune.rows import Config, Outcome, Row
from hotlap.tools.tune.verdict import give_verdict


def config(**settings):
    return TuneConfig(target="tiny.py:mlp", input=("4",), **settings)


@pytest.mark.parametrize(
    ("given", "size"),
    [({}, 4), ({"batch": 1}, 1), ({"max_batch": 2}, 2), ({"batches": (1, 3)}, 3), ({"batches": (8, 64)}, 4)],
)
def test_the_gate_takes_no_larger_batch_than_the_search_may(monkeypatch, given, size):
    """A model that takes one sample at a time could not be judged otherwise, and then not be tuned."""
    asked = []

    def note(job, **options):
        asked.append(job["batch"])
        raise WorkerDied("it died")

    monkeypatch.setattr(lab, "run_job", note)
    budget = Budget(seconds=9, rung_seconds=0.1)
    settings = config(**given)
    lab.ProcessLab(settings, budget, saved=lambda: None, say=lambda text: None).gate(["cpu"])
    assert asked == [size]


@pytest.mark.parametrize("is_reference", [True, False])
@pytest.mark.parametrize(
    ("given", "remedy"), [({}, "; --gate-batch judges fewer than 4 samples"), ({"gate_batch": 1}, "")]
)
def test_a_gate_without_memory_says_what_takes_less(monkeypatch, given, remedy, is_reference):
    """Whether the reference did not fit, which ends the process, or an arm on its card."""
    why = "batch = 4 does not fit in memory"

    def starve(job, **options):
        if is_reference:
            raise OutOfMemory(why)
        return encode(Gates(failures=[ArmFailure(arm="cpu", what=why, out_of_memory=True)]))

    monkeypatch.setattr(lab, "run_job", starve)
    budget = Budget(seconds=9, rung_seconds=0.1)
    laboratory = lab.ProcessLab(config(**given), budget, saved=lambda: None, say=lambda text: None)
    laboratory.gate(["cpu"])
    assert laboratory.gates["cpu"].why == f"could not be judged: {why}{remedy}"


@pytest.mark.parametrize(
    ("counts", "note"),
    [
        ({"num_breaks": 1}, "torch.compile broke the graph 1 time"),
        ({"num_recompiles": 2}, "torch.compile compiled again 2 times while steps were timed"),
        ({"tail_graphs": 1}, "torch.compile made 1 more graph for the ragged tail"),
        ({}, None),
    ],
)
def test_what_the_compiler_did_is_told_in_the_row_and_in_the_verdict(monkeypatch, counts, note):
    trial = {"arm": "cpu:compile", "batch": 4, "wall_ms": [1.0], "interval_ms": [1.0], "first_step_s": 1.0}
    trial |= {"memory": {}, "num_graphs": 1, **counts}
    monkeypatch.setattr(lab, "run_job", lambda job, **options: trial)
    budget = Budget(seconds=9, rung_seconds=0.1)
    laboratory = lab.ProcessLab(config(), budget, saved=lambda: None, say=lambda text: None)
    row = laboratory.trial("compile", Config("cpu:compile", 4), rung=0, attempt=0, tail=3)
    assert row.notes == ([note] if note else [])
    both = dataclasses.replace(row, notes=["torch.compile is slow", *row.notes])
    lines = give_verdict(config(), Goal("throughput"), [both, both], {}, None, "failed", "x").lines[1:]
    assert lines == ["cpu:compile: torch.compile is slow", *([f"cpu:compile: {note}"] if note else [])]


@pytest.mark.parametrize(("arm", "status"), [("cpu:compile", "failed"), ("cpu", "ok")])
def test_what_was_to_be_compiled_and_was_not_is_no_result(monkeypatch, arm, status):
    """By its noise it could win, under a name that it did not earn."""
    trial = {"arm": arm, "batch": 4, "wall_ms": [1.0], "interval_ms": [1.0], "first_step_s": 1.0}
    monkeypatch.setattr(lab, "run_job", lambda job, **options: trial | {"memory": {}, "num_graphs": 0})
    laboratory = lab.ProcessLab(
        config(), Budget(seconds=9, rung_seconds=0.1), saved=lambda: None, say=lambda text: None
    )
    row = laboratory.trial("compile", Config(arm, 4), rung=0, attempt=0, tail=0)
    assert row.status == status
    assert ("gave up" in row.why) == (status == "failed")


def test_the_verdict_says_why_an_arm_did_not_run_once_for_each():
    def row(arm, status, batch=4):
        return Row(stage="compile", arm=arm, batch=batch, rung=0, status=status, why=f"{arm} went wrong")

    def told(*rows, refused=None):
        outcome = Outcome(None, None, [], refused or {})
        return give_verdict(config(), Goal("throughput"), rows, {}, outcome, "complete", "").lines[1:]

    assert told(row("cpu:compile", "failed"), row("cpu:compile", "failed", 8), row("cpu", "out of memory")) == [
        "cpu:compile at batch 4 failed: cpu:compile went wrong"
    ]
    assert told(row("cpu", "timed out"), refused={"cpu at batch 4": "cpu went wrong"}) == [
        "refused cpu at batch 4: cpu went wrong"
    ]
    many = told(*(row(f"cpu:threads={count}", "timed out") for count in range(1, 8)))
    assert len(many) == 5 and many[-1] == "and 3 more that did not run; the page has them"
