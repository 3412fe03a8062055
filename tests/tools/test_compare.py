"""Before and after: regression, no regression, cannot tell; and what may not be compared at all."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

import hotlap
from hotlap.base.errors import ConfigError, RecordError, UsageError
from hotlap.records.environment import capture
from hotlap.records.measurement import Arm, Gate, GateCheck, Measurement
from hotlap.records.run import begin, load_record, run_folder, save
from hotlap.tools.compare import CompareConfig, compare

HERE = capture(import_torch=False)


@pytest.fixture
def write(tmp_path):
    """Writes a bench record whose arms have these centres in ms; its path."""

    def make(centres, *, spread=0.005, processes=8, kind="bench", status="complete", environment=HERE, **config):
        rng = np.random.default_rng(len(list(tmp_path.rglob("*.json"))))
        measurements = [
            Measurement(
                quantity="wall", unit="ms", arm=arm, process=p,
                values=list(
                    centre * (1 + spread * rng.standard_normal()) * (1 + 0.2 * spread * rng.standard_normal(10))
                ),
            )
            for arm, centre in centres.items()
            for p in range(processes)
        ]  # fmt: skip
        settings = {"target": "unet", "mode": "train", "batch": 4, "workload": {}, "input": [], **config}
        record = dataclasses.replace(
            begin(kind, "unet", settings, {}, environment),
            status=status,
            arms=[Arm(name=arm, settings={}) for arm in centres],
            measurements=measurements,
        )
        return save(record, run_folder(tmp_path / "runs", "unet")).path

    return make


@pytest.fixture
def judge(tmp_path):
    def run(before, after, **changes):
        heard = []
        config = CompareConfig(records=(before, after), runs=tmp_path / "runs", **changes)
        return compare(config, heard.append), heard

    return run


@pytest.mark.parametrize(
    ("after", "spread", "outcome", "code", "verdict"),
    [
        (13.0, 0.005, "regression", 1, "slower"),
        (10.0, 0.005, "no regression", 0, "same"),
        (7.0, 0.005, "no regression", 0, "faster"),
        (10.0, 0.2, "inconclusive", 3, "inconclusive"),
    ],
)
def test_the_exit_code_speaks(write, judge, after, spread, outcome, code, verdict):
    record, _ = judge(write({"cpu": 10.0}, spread=spread), write({"cpu": after}, spread=spread))
    assert (record.verdict.outcome, record.verdict.exit_code) == (outcome, code)
    (found,) = record.comparisons
    assert found.verdict == verdict
    assert found.ratio == pytest.approx(10.0 / after, rel=0.25 if spread > 0.1 else 0.02)
    assert record.kind == "compare" and record.status == "complete"
    assert load_record(record.path) == record


def test_a_slow_down_within_the_tolerance_is_no_regression(write, judge):
    before, after = write({"cpu": 10.0}, spread=0.001), write({"cpu": 10.2}, spread=0.001)
    record, _ = judge(before, after, tolerance=0.05)
    assert record.verdict.exit_code == 0
    assert "within the tolerance" in record.comparisons[0].reason
    strict, _ = judge(before, after, tolerance=0.01)
    assert strict.verdict.exit_code == 1


def test_the_worst_arm_is_named_in_the_headline(write, judge):
    before = write({"cpu": 10.0, "cuda": 10.0, "cuda:bf16": 10.0})
    record, _ = judge(before, write({"cpu": 10.0, "cuda": 12.0, "cuda:bf16": 15.0}))
    assert record.verdict.headline.startswith("Regression: cuda:bf16 runs at 0.6")


def test_cannot_tell_names_the_arm_that_cannot_be_told(write, judge, tmp_path):
    def both(noisy_centre, steady_centre):
        noisy, steady = (
            load_record(write({"noisy": noisy_centre}, spread=0.2)),
            load_record(write({"steady": steady_centre})),
        )
        both = dataclasses.replace(
            noisy, arms=noisy.arms + steady.arms, measurements=noisy.measurements + steady.measurements
        )
        return save(both, run_folder(tmp_path / "runs", "unet")).path

    record, _ = judge(both(10.0, 10.0), both(9.7, 10.2))
    assert {c.arm: c.verdict for c in record.comparisons} == {"noisy": "inconclusive", "steady": "same"}
    assert record.verdict.headline.endswith("is not excluded for noisy")


@pytest.mark.parametrize(("key", "value"), [("target", "bilstm"), ("mode", "infer"), ("batch", 8),
                                            ("workload", {"size": 1}), ("input", ["3"])])  # fmt: skip
def test_different_work_is_refused_unless_forced(write, judge, key, value):
    before, after = write({"cpu": 10.0}), write({"cpu": 10.0}, **{key: value})
    with pytest.raises(UsageError, match=rf"measure different work: {key} is .*--force") as caught:
        judge(before, after)
    assert caught.value.exit_code == 2
    record, heard = judge(before, after, force=True)
    assert record.verdict.exit_code == 0
    assert any(note.startswith(f"Different work: {key}") for note in record.notes)
    assert [event.kind for event in heard] == ["warn"]


def test_another_machine_is_noted(write, judge):
    elsewhere = dataclasses.replace(HERE, cpu_model="Other CPU", packages={"torch": "9.9"}, driver="1.0")
    record, _ = judge(write({"cpu": 10.0}), write({"cpu": 10.0}, environment=elsewhere))
    notes = " ".join(record.notes)
    for word in ("machine changed", "Other CPU", "torch changed", "'9.9'", "driver changed"):
        assert word in notes


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_a_record_that_is_not_whole_is_refused_unless_forced(write, judge, status):
    before, after = write({"cpu": 10.0}, status=status), write({"cpu": 10.0})
    with pytest.raises(UsageError, match=rf"is {status}.*--force"):
        judge(before, after)
    assert judge(before, after, force=True)[0].verdict.exit_code == 0


def test_only_benches_are_compared(write, judge):
    with pytest.raises(UsageError, match=r"is of kind 'doctor'\. Expected records of 'hotlap bench'"):
        judge(write({"cpu": 10.0}, kind="doctor"), write({"cpu": 10.0}))


def test_arms_that_only_one_record_has_are_told(write, judge):
    record, _ = judge(write({"cpu": 10.0, "cuda": 1.0}), write({"cpu": 10.0, "cpu:bf16": 9.0}))
    assert [c.arm for c in record.comparisons] == ["cpu"]
    assert "Not compared, because only one record has it: cpu:bf16, cuda." in record.notes


def test_an_arm_asked_for_and_missing_is_an_error(write, judge):
    before, after = write({"cpu": 10.0, "cuda": 1.0}), write({"cpu": 10.0})
    with pytest.raises(RecordError, match=r"arm 'cuda' was not timed in both records\. Expected cpu"):
        judge(before, after, arm="cuda")
    assert [c.arm for c in judge(before, after, arm="cpu")[0].comparisons] == ["cpu"]


def test_an_arm_may_be_spelt_as_a_bench_takes_it(write, judge):
    before, after = write({"cpu": 10.0, "cpu:bf16+threads=1": 1.0}), write({"cpu": 10.0, "cpu:bf16+threads=1": 1.0})
    record, _ = judge(before, after, arm="cpu:threads=1+bf16")
    assert [c.arm for c in record.comparisons] == ["cpu:bf16+threads=1"]
    with pytest.raises(UsageError, match=r"'bf17'.*'bf16'"):
        judge(before, after, arm="cpu:bf17")


def test_nothing_in_common_is_an_error(write, judge):
    with pytest.raises(RecordError, match="share no arm with 'wall' samples: one has cuda, the other cpu"):
        judge(write({"cuda": 10.0}), write({"cpu": 10.0}))
    with pytest.raises(RecordError, match=r"share no arm with 'device' samples.*one of the quantities wall\."):
        judge(write({"cpu": 10.0}), write({"cpu": 10.0}), quantity="device")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"records": ("a",)}, r"records = \['a'\] names 1\. Expected two: before and after"),
        ({"records": ("a", "b"), "tolerance": 0.0}, "tolerance = 0.0"),
        ({"records": ("a", "b"), "tolerance": math.nan}, "tolerance = nan"),
    ],
)
def test_a_wrong_setting_is_named(settings, words):
    with pytest.raises(ConfigError, match=words):
        CompareConfig(**settings)


def test_the_same_from_a_script(write, tmp_path):
    record = hotlap.compare(write({"cpu": 10.0}), write({"cpu": 15.0}), runs=tmp_path / "runs")
    assert record.verdict.exit_code == 1
    assert record.config_sources["tolerance"] == "default"


def spoilt(path, arm, *, error="", timed=False):
    """The record at ``path`` with an arm that failed, or whose answer was wrong."""
    record = load_record(path)
    check = GateCheck(name="outputs", error=0.5, allowed=0.06, passed=False)
    record = dataclasses.replace(
        record,
        arms=[dataclasses.replace(a, error=error) if a.name == arm else a for a in record.arms],
        measurements=[m for m in record.measurements if timed or m.arm != arm],
        gates=[] if error else [Gate(arm=arm, passed=False, checks=[check], reference="float64 on the CPU")],
    )
    return save(record, Path(path).parent).path


@pytest.mark.parametrize("only", [None, "cpu:bf16"])
@pytest.mark.parametrize(
    ("error", "words"),
    [("", "cpu:bf16 gives a wrong answer now: outputs error 5.0e-1, allowed 6.0e-2"),
     ("RuntimeError: no such kernel", "cpu:bf16 gives no time now: RuntimeError: no such kernel")],
)  # fmt: skip
def test_an_arm_that_went_wrong_is_a_regression(write, judge, error, words, only):
    before, after = write({"cpu": 10.0, "cpu:bf16": 5.0}), write({"cpu": 10.0, "cpu:bf16": 5.0})
    record, _ = judge(before, spoilt(after, "cpu:bf16", error=error), arm=only)
    assert (record.verdict.outcome, record.verdict.exit_code) == ("regression", 1)
    assert record.verdict.headline == f"Regression: {words}"
    assert [c.arm for c in record.comparisons] == ([] if only else ["cpu"])


def test_an_arm_that_was_wrong_before_or_is_not_asked_about_is_none(write, judge):
    before, after = (spoilt(write({"cpu": 10.0, "cpu:bf16": 5.0}), "cpu:bf16") for _ in range(2))
    assert judge(before, after)[0].verdict.outcome == "no regression"
    right = write({"cpu": 10.0, "cpu:bf16": 5.0})
    assert judge(right, after, arm="cpu")[0].verdict.outcome == "no regression"


def test_the_only_arm_gone_wrong_is_a_regression_and_no_error(write, judge):
    record, _ = judge(write({"cpu": 10.0}), spoilt(write({"cpu": 10.0}), "cpu", timed=True))
    assert record.verdict.headline.startswith("Regression: cpu gives a wrong answer now")
