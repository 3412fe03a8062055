"""``hotlap train`` and a stored profile: what is trained, what the record says about where it came from."""

from __future__ import annotations

import pytest

import hotlap
from hotlap.engine.progress import Outcome
from hotlap.engine.supervise import Supervised
from hotlap.measure.fingerprint import Question, ask_key
from hotlap.records.codec import encode
from hotlap.records.tuned import ProfileStore, TunedProfile
from hotlap.tools.train import run as train_run

MLP = """
from torch import nn

def mlp():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
"""
OUTCOME = encode(Outcome(status="complete", step=1, epoch=1, samples_per_s=1.0))


@pytest.fixture
def trained(tmp_path, monkeypatch, jobs_in_process):
    """The configs that a training would have been started with; a profile of the target is stored."""
    (tmp_path / "tiny.py").write_text(MLP)
    monkeypatch.chdir(tmp_path)
    question = Question(target="tiny.py:mlp", mode="train", options={}, inputs=["4"], device="cpu")
    profile = TunedProfile(
        key=ask_key(question), arm="cpu:bf16+fused", batch=24, objective="throughput", samples_per_s=9.0,
        samples_ms=[[1.0]], p50_ms=1.0, p95_ms=None, peak_bytes=None, gate_error=0.1, tail_batch=16, max_batch=24,
        searched_from="2026-01-01", measured_at="2026-01-02", record="r",
    )  # fmt: skip
    ProfileStore().save(profile)
    started = []

    def supervise(config, folder, resume, emit):
        started.append(config)
        return Supervised(OUTCOME, [], config)

    monkeypatch.setattr(train_run, "supervise", supervise)
    return started


def test_a_training_uses_the_profile_and_its_record_says_so(trained):
    record = hotlap.train("tiny.py:mlp", input=("4",), device="cpu", fused=False)
    (config,) = trained
    assert (config.precision, config.fused, config.batch) == ("bf16-mixed", False, 24)
    assert record.config["precision"] == "bf16-mixed"
    assert record.config_sources["precision"].startswith("tuned profile (")
    assert record.config_sources["fused"] == "the call"
    assert any("cpu:bf16+fused at batch 24" in note and "--no-tuned goes without" in note for note in record.notes)


def test_one_who_goes_without_gets_the_defaults(trained):
    record = hotlap.train("tiny.py:mlp", input=("4",), device="cpu", tuned=False)
    assert (trained[0].precision, trained[0].batch) == ("32-true", None)
    assert not any("uned profile" in note for note in record.notes)
