"""The stored profile's arm in a bench: by its name, by itself, and refused with the reason where none holds."""

from __future__ import annotations

import dataclasses

import pytest

from hotlap.base.errors import UsageError
from hotlap.measure.fingerprint import Question, ask_key
from hotlap.measure.jobs import Description
from hotlap.records.tuned import ProfileStore, TunedProfile
from hotlap.tools.bench import BenchConfig, bench, preview
from hotlap.tools.bench.stored import with_stored_arm

MLP = """
from torch import nn

def mlp():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
"""

ABOUT = Description(
    name="mlp", summary="", default_batch=16, num_parameters=51, has_convolutions=False, can_compile=False,
    fast_bf16=False, usable_cores=2, num_cuda=0,
)  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch, jobs_in_process):
    (tmp_path / "tiny.py").write_text(MLP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def store(**changes):
    question = Question(target="tiny.py:mlp", mode="infer", options={}, inputs=["4"], device="cpu")
    key = dataclasses.replace(ask_key(question), **changes)
    ProfileStore().save(
        TunedProfile(
            key=key, arm="cpu:bf16", batch=12, objective="throughput", samples_per_s=9.0, samples_ms=[[1.0]],
            p50_ms=1.0, p95_ms=None, peak_bytes=None, gate_error=0.1, tail_batch=3, max_batch=12,
            searched_from="2026-01-01", measured_at="2026-01-02", record="r",
        )
    )  # fmt: skip


def config(**settings):
    common = {"target": "tiny.py:mlp", "input": ("4",), "mode": "infer", "context": False, "break_even": False}
    brief = {"processes": 1, "repeats": 1, "seconds": 0.0, "warmup_seconds": 0.0, "memory": False, "gate_steps": 1}
    return BenchConfig(**{**common, **brief, **settings})


@pytest.mark.usefixtures("folder")
def test_alone_it_is_set_against_the_plain_device_at_its_own_batch():
    store()
    record = bench(config(arms=("tuned-profile",)))
    assert [(arm.name, arm.role) for arm in record.arms] == [("cpu", "baseline"), ("cpu:bf16", "arm")]
    assert record.config["batch"] == 12
    assert any(note.startswith("Tuned profile ") and "cpu:bf16 at batch 12" in note for note in record.notes)


@pytest.mark.usefixtures("folder")
def test_without_arms_a_profile_that_holds_joins_the_others_unless_told_not_to():
    store()
    assert "arm        cpu:bf16" in preview(config())
    assert "arm        cpu:bf16" not in preview(config(tuned=False))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("given", "is_told"), [({}, True), ({"batch": 8}, False), ({"arms": ("tuned-profile",)}, False)]
)
def test_that_its_batch_is_not_taken_is_told(given, is_told):
    """It was named with its batch just before; where the user gives one there is nothing to tell."""
    store()
    told: list[str] = []
    lines = with_stored_arm(config(**given), ABOUT, lambda event: told.append(event.text))[1]
    assert lines[0] in told and "at batch 12" in lines[0]
    one = "It is not timed at batch 12 here: --arms tuned-profile takes its batch, too."
    assert (one in lines) == (one in told) == is_told


@pytest.mark.usefixtures("folder")
def test_where_none_was_stored_its_name_is_refused():
    words = r"arms has 'tuned-profile', but no tuned profile of 'tiny\.py:mlp' for infer holds here"
    with pytest.raises(UsageError, match=words):
        bench(config(arms=("cpu", "tuned-profile")))


@pytest.mark.usefixtures("folder")
def test_a_stale_one_is_refused_with_the_reason():
    store(torch="1.0")
    with pytest.raises(UsageError, match=r"is stale and not used: torch was 1\.0, is "):
        bench(config(arms=("tuned-profile",)))
