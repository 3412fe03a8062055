"""References that one judging process leaves for the next: the same verdicts, and never those of another workload."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hotlap.measure import evidence
from hotlap.measure.arms import parse_arm
from hotlap.measure.evidence import Evidence, Remembered, folder_for
from hotlap.measure.gate import GateKeeper
from hotlap.measure.nursery import Nursery, can_fork
from hotlap.measure.process import run_job
from hotlap.targets import InputSpec, ModuleWorkload

JOB = {
    "target": "m.py:net",
    "options": {"width": 8},
    "inputs": ["4"],
    "seed": 0,
    "mode": "train",
    "batch": 4,
    "steps": 2,
}


def net(width=8):
    return nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3))


@pytest.fixture
def count(monkeypatch):
    """How often something was really run for its evidence."""
    runs, gather = [], GateKeeper._gather

    def counted(self, session):
        runs.append(session.spec.name)
        return gather(self, session)

    monkeypatch.setattr(GateKeeper, "_gather", counted)
    return runs


def keeper(folder, build=net):
    workload = ModuleWorkload("w", build, [InputSpec((6,))])
    return GateKeeper(workload, mode="train", batch=4, steps=2, seed=0, kept=folder)


def test_the_second_judge_computes_no_reference_and_says_the_same(tmp_path, count):
    arm = parse_arm("cpu:bf16")
    first = keeper(tmp_path / "kept").judge(arm)
    assert count.count("cpu") == 2
    count.clear()
    second = keeper(tmp_path / "kept").judge(arm)
    assert count == ["cpu:bf16"]
    assert second.checks == first.checks and second.passed == first.passed
    fresh = keeper(None).judge(arm)
    assert fresh.checks == first.checks and count.count("cpu") == 2, "without a folder nothing is remembered"


@pytest.mark.parametrize("spoil", ["another model", "cut short", "not evidence"])
def test_what_does_not_hold_any_more_is_computed_anew(tmp_path, count, spoil):
    keeper(tmp_path).judge(parse_arm("cpu"))
    if spoil == "cut short":
        (tmp_path / "truth.pt").write_bytes((tmp_path / "truth.pt").read_bytes()[:100])
    elif spoil == "not evidence":
        torch.save({"outputs": 1}, tmp_path / "truth.pt")
    build = (lambda: net(16)) if spoil == "another model" else net
    count.clear()
    gate = keeper(tmp_path, build).judge(parse_arm("cpu:fused"))
    assert gate.passed and "cpu" in count


def test_a_workload_that_is_never_the_same_is_told_as_without_a_folder(tmp_path):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)
            self.layer.weight.data += torch.from_numpy(np.random.default_rng().normal(size=(3, 6))).float()

        def forward(self, x):
            return self.layer(x)

    for _ in range(2):
        gate = keeper(tmp_path / "kept", Noisy).judge(parse_arm("cpu"))
        assert not gate.passed and gate.checks[0].name == "same twice"


def found(number=4):
    return Evidence(torch.zeros(number, dtype=torch.float64), {}, [1.0], 0.1)


def test_what_is_large_or_finds_no_room_is_not_kept(tmp_path, monkeypatch):
    remembered = Remembered(tmp_path / "kept")
    monkeypatch.setattr(evidence, "MOST_BYTES", 100)
    monkeypatch.setattr(evidence, "DISK_BYTES_PER_S", 0.0)
    remembered.get("large", lambda: found(100))
    monkeypatch.setattr(evidence, "ROOM", 2**60)
    remembered.get("no room", found)
    assert not list(tmp_path.rglob("*.p*"))
    (tmp_path / "file").write_text("")
    assert Remembered(tmp_path / "file" / "below").get("x", found).losses == [1.0], "no failure of the disk is told"


@pytest.mark.parametrize(("per_s", "is_kept"), [(1e3, False), (1e12, True)])
def test_what_is_large_is_kept_where_to_compute_it_took_longer_than_to_write_it(tmp_path, monkeypatch, per_s, is_kept):
    monkeypatch.setattr(evidence, "MOST_BYTES", 100)
    monkeypatch.setattr(evidence, "DISK_BYTES_PER_S", per_s)
    Remembered(tmp_path / "kept").get("large", lambda: time.sleep(0.01) or found(100))
    assert bool(list(tmp_path.rglob("*.pt"))) == is_kept


def test_jobs_share_references_unless_they_ask_for_another_workload(tmp_path):
    place = folder_for(str(tmp_path), {**JOB, "arms": ["cpu"]})
    assert place == folder_for(str(tmp_path), {**JOB, "arms": ["cpu:bf16"]})
    others = [{"seed": 1}, {"batch": 8}, {"steps": 3}, {"mode": "infer"}, {"options": {}}, {"target": "n.py:net"}]
    assert all(folder_for(str(tmp_path), {**JOB, **other}) != place for other in others)
    assert folder_for("", JOB) is None


@pytest.mark.skipif(not can_fork(), reason="fresh processes only")
def test_a_nursery_keeps_references_for_its_workers_as_long_as_it_lives(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text("from torch import nn\ndef net(width=8):\n    return nn.Linear(4, width)\n")
    with Nursery() as nursery:
        kept = Path(nursery.kept)
        for arm in ("cpu", "cpu:bf16"):
            gates = run_job({"job": "gate", **JOB, "arms": [arm]}, timeout_s=120, nursery=nursery)
            assert gates["gates"][0]["passed"]
        assert {file.name for file in kept.rglob("*.pt")} == {"truth.pt", "yardstick.pt"}
        assert len(list(kept.iterdir())) == 1
    assert not kept.exists()
