"""A against A: the machinery counts right, and says so when it could not count."""

from __future__ import annotations

import importlib

import pytest

from hotlap.base.errors import DeviceUnavailable, OutOfMemory, TargetError, UnknownName, UsageError
from hotlap.records.environment import capture
from hotlap.records.measurement import Measurement
from hotlap.records.run import begin, find_runs, load_record
from hotlap.tools.bench import BenchConfig, preview
from hotlap.tools.bench.self_test import _judge, _snapshot, self_test

module = importlib.import_module("hotlap.tools.bench.self_test")

TARGET = """
import torch
from torch import nn
from hotlap import Workload

class Small(Workload):
    default_batch = 3
    def build_model(self):
        return nn.Linear(4, 2)
    def make_batch(self, n, device, generator):
        if n > 100:
            torch.empty(2**50, dtype=torch.uint8)
        return torch.randn(n, 4, generator=generator)
    def loss(self, model, batch):
        return model(batch).square().sum(), len(batch)

class Fails(Small):
    def loss(self, model, batch):
        raise ValueError("no loss today")
"""


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(module, "ROUNDS", 2)
    monkeypatch.setattr(module, "PAIRS", 2)


def settings(tmp_path, **changes):
    (tmp_path / "selfie.py").write_text(TARGET)
    given = {"target": f"{tmp_path}/selfie.py:Small", "arms": ("cpu:threads=1",), "processes": 3, "repeats": 3,
             "seconds": 0.01, "warmup_seconds": 0.1, "runs": tmp_path / "runs"}  # fmt: skip
    return BenchConfig(**{**given, **changes})


def fake_round(bias, processes=8):
    return [
        Measurement(
            quantity="wall", unit="ms", arm=f"cpu {side}{pair}", process=p,
            values=[(bias if side == "B" and pair == 0 else 1.0) * (1 + 0.001 * ((3 * b + p) % 7)) for b in range(10)],
        )
        for p in range(processes)
        for pair in range(3)
        for side in "AB"
    ]  # fmt: skip


def test_a_biased_pair_is_counted_as_a_false_alarm():
    record = begin("self-test", "x", {}, {}, capture(import_torch=False))
    config = BenchConfig(target="x")
    found = _snapshot(record, [fake_round(1.0), fake_round(1.5)], config)
    assert found.extra["self_test"]["comparisons"] == 6
    assert found.extra["self_test"]["false_positives"] == 1
    assert found.extra["self_test"]["rate"] == pytest.approx(1 / 6)
    assert len(found.extra["self_test"]["ratios"]) == 6
    assert {m.arm.partition(" cpu")[0] for m in found.measurements} == {"round 1", "round 2"}
    verdict = _judge(found).verdict
    assert (verdict.outcome, verdict.exit_code) == ("too noisy", 1)
    assert "1 of 6 comparisons named a difference (16.7%" in verdict.headline


def test_equal_pairs_are_trustworthy():
    record = begin("self-test", "x", {}, {}, capture(import_torch=False))
    verdict = _judge(_snapshot(record, [fake_round(1.0)], BenchConfig(target="x"))).verdict
    assert (verdict.outcome, verdict.exit_code) == ("trustworthy", 0)


@pytest.mark.slow
def test_it_runs_and_counts_every_pair_of_every_round(tmp_path, jobs_in_process):
    record = self_test(settings(tmp_path))
    assert record.status == "complete" and record.kind == "self-test"
    assert record.extra["self_test"]["comparisons"] == 4
    timing = [job for job in jobs_in_process if job["job"] == "timing"]
    assert len(timing) == 2 * 3
    assert timing[0]["labels"] == [f"cpu:threads=1 {side}{pair}" for pair in (0, 1) for side in "AB"]
    assert {job["batch"] for job in timing} == {3}, "the workload's own batch, where none is given"
    assert len(record.measurements) == 2 * 3 * 4
    assert load_record(record.path) == record


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"batch": 1000}, OutOfMemory, "batch 1000"),
        ({"target": "selfie.py:Fails"}, TargetError, "no loss today"),
        ({"target": "unett"}, UnknownName, "unknown target 'unett'"),
        ({"arms": ("cpu:tuned",)}, UsageError, "cpu:tuned"),
    ],
)
def test_what_cannot_be_timed_is_told_as_an_error(tmp_path, jobs_in_process, monkeypatch, changes, error, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=words):
        self_test(settings(tmp_path, **changes))
    for file in find_runs(tmp_path / "runs"):
        assert load_record(file).status == "failed"


def test_a_card_that_is_not_there_is_told_before_anything_is_written(tmp_path, jobs_in_process):
    with pytest.raises(DeviceUnavailable, match=r"CUDA device was asked for|does not exist") as caught:
        self_test(settings(tmp_path, arms=("cuda:97",)))
    assert caught.value.exit_code == 4
    with pytest.raises(DeviceUnavailable, match=r"CUDA device was asked for|does not exist"):
        preview(settings(tmp_path, arms=("cuda:97",), self_test=True))
    assert [job["job"] for job in jobs_in_process] == ["describe"] and not (tmp_path / "runs").exists()


def test_an_interruption_leaves_a_record_that_says_so(tmp_path, jobs_in_process, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "decode", interrupt)
    with pytest.raises(KeyboardInterrupt):
        self_test(settings(tmp_path))
    (file,) = find_runs(tmp_path / "runs")
    assert load_record(file).status == "interrupted"
