"""From raw samples to rows, comparisons and one line; plans, break-even and settings. Nothing here measures."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest

from hotlap.base.errors import ConfigError, DeviceUnavailable, UsageError
from hotlap.base.settings import Layer, resolve
from hotlap.measure.arms import parse_arm
from hotlap.measure.compared import build_arm, compare_arms, describe_comparison
from hotlap.measure.jobs import ArmFailure, Description, Footprint, Sweep
from hotlap.records.measurement import Gate, GateCheck, Measurement, Memory, Telemetry
from hotlap.tools.bench.break_even import find_break_even, sweep_batches
from hotlap.tools.bench.config import QUICK, BenchConfig
from hotlap.tools.bench.plan import make_plan
from hotlap.tools.bench.verdict import give_verdict


def samples(arm, centre, processes=8, quantity="wall", spread=0.001):
    return [
        Measurement(
            quantity=quantity, unit="ms", arm=arm, process=p,
            values=[centre * (1 + spread * ((7 * b + 3 * p) % 5 - 2)) for b in range(10)],
        )
        for p in range(processes)
    ]  # fmt: skip


def rows(measurements, *names, telemetry=(), failures=(), context=()):
    failed = {f.arm: f for f in failures}
    made = []
    for place, name in enumerate([*names, *context]):
        role = "context" if name in context else "arm" if place else "baseline"
        footprint = Footprint(memory=Memory(host_rss_bytes=1), first_step_s=0.1)
        made.append(build_arm(parse_arm(name), role, 4, measurements, telemetry, footprint, failed.get(name)))
    return made


def gate(arm, passed=True, error=1e-7):
    check = GateCheck(name="outputs", error=error, allowed=1e-6, passed=passed, detail="why")
    return Gate(arm=arm, passed=passed, checks=[check], reference="float64")


def test_a_faster_arm_is_named_with_its_ratio():
    measured = samples("cpu", 10.0) + samples("cpu:bf16", 5.0)
    arms = rows(measured, "cpu", "cpu:bf16")
    (found,) = compare_arms(arms, {}, measured, 0.01)
    assert (found.arm, found.baseline, found.verdict, found.quantity) == ("cpu:bf16", "cpu", "faster", "wall")
    assert found.ratio == pytest.approx(2.0, rel=0.01) and found.low <= found.ratio <= found.high
    assert found.test.startswith("sign-flip")
    verdict = give_verdict(arms, {}, [found], [])
    assert (verdict.outcome, verdict.exit_code) == ("faster", 0)
    assert "cpu:bf16 is faster than cpu: 2.000x" in verdict.headline


def test_arms_of_different_batches_are_compared_by_time_a_sample():
    measured = samples("cpu", 10.0) + samples("cpu:batch=16", 20.0)
    arms = rows(measured, "cpu", "cpu:batch=16")
    (found,) = compare_arms(arms, {}, measured, 0.01)
    assert found.ratio == pytest.approx(2.0, rel=0.01), "four times the samples of a batch of 4 in twice the time"
    assert found.verdict == "faster"
    assert [arm.settings["batch"] for arm in arms] == [4, 16]
    assert arms[1].samples_per_s == pytest.approx(2 * arms[0].samples_per_s, rel=0.01)


def test_p_values_are_corrected_over_all_arms():
    names = ["cpu:bf16", "cpu:threads=1", "cpu:fused"]
    measured = samples("cpu", 10.0) + [m for name in names for m in samples(name, 5.0)]
    found = compare_arms(rows(measured, "cpu", *names), {}, measured, 0.01)
    assert [c.p_value for c in found] == pytest.approx([3 * 2 / 256] * 3)
    assert {c.verdict for c in found} == {"faster"}, "0.023 is below the level for several questions together"


def test_identical_arms_are_inconclusive_and_the_detectable_change_is_told():
    measured = samples("cpu", 10.0, spread=0.02) + samples("cpu:bf16", 10.0, spread=0.02)
    arms = rows(measured, "cpu", "cpu:bf16")
    (found,) = compare_arms(arms, {}, measured, 0.01)
    verdict = give_verdict(arms, {}, [found], [])
    assert (found.verdict, verdict.outcome, verdict.exit_code) == ("inconclusive", "inconclusive", 3)
    assert "could show" in verdict.headline


def test_a_wrong_answer_has_no_speed():
    measured = samples("cpu", 10.0) + samples("cpu:bf16", 1.0)
    arms = rows(measured, "cpu", "cpu:bf16")
    gates = {"cpu": gate("cpu"), "cpu:bf16": gate("cpu:bf16", passed=False, error=0.2)}
    assert compare_arms(arms, gates, measured, 0.01) == []
    verdict = give_verdict(arms, gates, [], [])
    assert (verdict.outcome, verdict.exit_code) == ("gate failed", 1)
    assert verdict.headline == "cpu:bf16 gives a wrong answer: outputs error 0.2, allowed 1e-06 (why)"


def test_a_baseline_with_a_wrong_answer_compares_with_nothing():
    measured = samples("cpu", 10.0) + samples("cpu:bf16", 1.0)
    assert compare_arms(rows(measured, "cpu", "cpu:bf16"), {"cpu": gate("cpu", False)}, measured, 0.01) == []


@pytest.mark.parametrize("short", ["cpu", "cpu:bf16"])
def test_an_arm_that_failed_midway_is_compared_as_far_as_it_came(short):
    measured = samples("cpu", 10.0, 3 if short == "cpu" else 8) + samples("cpu:bf16", 5.0, 8 if short == "cpu" else 3)
    (found,) = compare_arms(rows(measured, "cpu", "cpu:bf16"), {}, measured, 0.01)
    assert found.ratio == pytest.approx(2.0, rel=0.01)
    assert "too few processes" in found.test


def telemetry(arm, **changes):
    return [Telemetry(process=0, arm=arm, block=b, seconds=b, **(changes if b == 0 else {})) for b in range(4)]


def test_throttled_blocks_are_counted_in_the_notes():
    told = telemetry("cuda", throttle=["software power cap"])
    (row,) = rows(samples("cuda", 5.0), "cuda", telemetry=told)
    assert row.notes == ["clock held back in 1 of 4 blocks (software power cap)"]


@pytest.mark.parametrize("disturbed", ["cpu", "cuda"])
def test_another_tenant_downgrades_the_verdict(disturbed):
    measured = samples("cpu", 10.0) + samples("cuda", 1.0)
    arms = rows(measured, "cpu", "cuda", telemetry=telemetry(disturbed, other_processes=[5]))
    (found,) = compare_arms(arms, {}, measured, 0.01)
    assert (found.verdict, found.reason) == ("inconclusive", "another process was on the device while it was timed")
    quiet = rows(measured, "cpu", "cuda")
    assert compare_arms(quiet, {}, measured, 0.01)[0].verdict == "faster"


def test_a_row_has_speed_memory_first_step_percentiles_and_flags():
    first = Measurement(quantity="first_step", unit="s", arm="cpu", process=0, values=[0.5])
    energy = Measurement(quantity="energy", unit="J", arm="cpu", process=0, values=[8.0])
    measured = [*samples("cpu", 10.0), *samples("cpu", 10.0, quantity="interval"), first, energy]
    measured[0] = dataclasses.replace(measured[0], flags=["long steps"])
    (row,) = rows(measured, "cpu")
    assert row.samples_per_s == pytest.approx(400, rel=0.01)
    assert (row.first_step_s, row.energy_j_per_sample, row.memory.host_rss_bytes) == (0.5, 2.0, 1)
    assert row.notes == ["long steps"]
    wall, interval = row.summary("wall"), row.summary("interval")
    assert (wall.num_processes, wall.num_samples, len(wall.process_medians)) == (8, 80, 8)
    assert list(interval.percentiles) == ["p50", "p90"] and wall.percentiles == {}
    assert row.summary("device") is None


def test_device_time_is_also_told_in_cycles():
    told = [Telemetry(process=0, arm="cuda", block=0, seconds=0, sm_clock_mhz=1000.0)]
    (row,) = rows(samples("cuda", 5.0, 1, "device", spread=0), "cuda", telemetry=told)
    assert row.summary("cycles").median == pytest.approx(5.0)
    assert row.summary("cycles").unit == "Mcycle"


def test_copies_and_context_are_shown_beside():
    measured = (samples("cpu", 10.0) + samples("cuda", 1.0) + samples("cuda", 2.0, quantity="transfer")
                + samples("cpu:threads=1", 20.0, 1))  # fmt: skip
    found = compare_arms(rows(measured, "cpu", "cuda", context=["cpu:threads=1"]), {}, measured, 0.01)
    by = {(c.quantity, c.baseline): c for c in found}
    assert by["wall", "cpu"].ratio == pytest.approx(10, rel=0.02)
    assert by["transfer", "cpu"].ratio == pytest.approx(5, rel=0.02)
    assert by["wall", "cpu:threads=1"].ratio == pytest.approx(20, rel=0.02)
    assert by["wall", "cpu:threads=1"].reason == "context arm"


@pytest.mark.parametrize(("memory", "code"), [(True, 5), (False, 4)])
def test_an_arm_that_failed_is_told_and_the_exit_code_says_how(memory, code):
    failure = ArmFailure(arm="cpu:bf16", what="RuntimeError at batch 4: no", out_of_memory=memory)
    measured = samples("cpu", 10.0)
    arms = rows(measured, "cpu", "cpu:bf16", failures=[failure])
    verdict = give_verdict(arms, {}, [], [failure])
    assert (verdict.outcome, verdict.exit_code) == ("arm failed", code)
    assert verdict.headline == "cpu:bf16 gave no time: RuntimeError at batch 4: no"
    assert [a.error for a in arms] == ["", failure.what]


@pytest.mark.parametrize(("ms", "words"), [(10.0, r"10\.0+ ms"), (0.0219, r"21\.90* µs"), (2500.0, r"2\.50+ s")])
def test_one_arm_alone_is_timed_and_none_is_an_error(ms, words):
    verdict = give_verdict(rows(samples("cpu", ms), "cpu"), {}, [], [])
    assert (verdict.outcome, verdict.exit_code) == ("timed", 0)
    assert re.fullmatch(rf"cpu: a step takes {words} \[[\d.]+, [\d.]+\]", verdict.headline)
    assert give_verdict(rows([], "cpu"), {}, [], []).exit_code == 4


def test_a_comparison_reads_as_a_sentence():
    measured = samples("cpu", 1000.0) + samples("cpu:bf16", 1.0)
    (found,) = compare_arms(rows(measured, "cpu", "cpu:bf16"), {}, measured, 0.01)
    assert describe_comparison(found).startswith("cpu:bf16 is faster than cpu: 1,000x [")


# Break-even


@pytest.mark.parametrize(("largest", "sizes"), [(1, [1]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_the_sweep_doubles_up_to_the_batch_itself(largest, sizes):
    assert sweep_batches(largest) == sizes


@pytest.mark.parametrize(
    ("host", "card", "batch", "words"),
    [
        ([1, 2, 4], [3, 3, 3], 4, "pays from batch 4 on, copies"),
        ([9, 9, 9], [3, 3, 3], 1, "pays from batch 1 on, the smallest tried"),
        ([1, 1, 1], [3, 3, 3], None, "does not pay at any batch tried, up to 4"),
        ([9, 1, 9], [3, 3, 3], 4, "pays from batch 4 on"),
        ([1, 9, math.nan], [3, 3, 3], 2, "pays from batch 2 on"),
        ([1, 9, 9], [3, 3, math.nan], None, "does not pay"),
        ([1, 9, math.nan], [3, 3, math.nan], None, "does not pay"),
    ],
)
def test_break_even_is_the_batch_from_which_on_the_card_always_wins(host, card, batch, words):
    sweep = Sweep(batches=[1, 2, 4], times_ms={"cpu": host, "cuda": card})
    found = find_break_even(sweep, "cpu", "cuda")
    assert found["batch"] == batch
    assert words in found["text"] and found["text"].startswith("cuda ")


# Plans and settings


def about(**changes):
    described = {"name": "x", "summary": "", "default_batch": 4, "num_parameters": 1, "has_convolutions": False,
                 "can_compile": False, "fast_bf16": False, "usable_cores": 4, "num_cuda": 0}  # fmt: skip
    return Description(**{**described, **changes})


@pytest.mark.parametrize(
    ("given", "machine", "arms", "context"),
    [
        ((), {}, ["cpu", "cpu:threads=1", "cpu:tuned"], []),
        ((), {"usable_cores": 1}, ["cpu", "cpu:tuned"], []),
        ((), {"num_cuda": 1}, ["cpu:tuned", "cuda"], ["cpu:threads=1"]),
        (("cpu", "cuda"), {"num_cuda": 1}, ["cpu", "cuda"], ["cpu:tuned", "cpu:threads=1"]),
        (("cuda", "cuda:bf16"), {"num_cuda": 1}, ["cuda", "cuda:bf16"], []),
    ],
)
def test_the_arms_by_default_answer_how_much_faster_it_is_here(given, machine, arms, context):
    plan = make_plan(BenchConfig(target="x", arms=given), about(**machine))
    assert [a.name for a in plan.arms] == arms
    assert [a.name for a in plan.context] == context


@pytest.mark.parametrize(
    ("machine", "arms"),
    [
        ({}, ["cpu", "cpu:threads=1"]),
        ({"has_convolutions": True}, ["cpu", "cpu:channels_last"]),
        ({"has_convolutions": True, "num_cuda": 1}, ["cpu", "cuda"]),
    ],
)
def test_a_quick_answer_sets_two_arms_against_each_other(machine, arms):
    plan = make_plan(BenchConfig(target="x", quick=True, context=False), about(**machine))
    assert [a.name for a in plan.arms] == arms and not plan.context


def test_the_same_arm_twice_is_refused():
    with pytest.raises(UsageError, match=r"arm 'cpu:fp32' is given twice.*--self-test|arm 'cpu' is given twice"):
        make_plan(BenchConfig(target="x", arms=("cpu", "cpu:fp32")), about())


def test_an_arm_whose_own_batch_is_that_of_the_run_is_the_same_arm():
    with pytest.raises(UsageError, match="arm 'cpu' is given twice"):
        make_plan(BenchConfig(target="x", arms=("cpu", "cpu:batch=6"), batch=6), about())
    plan = make_plan(BenchConfig(target="x", arms=("cpu", "cpu:batch=12"), batch=6), about())
    assert [arm.batch for arm in plan.arms] == [0, 12]


def test_a_card_that_is_not_there_is_refused():
    with pytest.raises(DeviceUnavailable):
        make_plan(BenchConfig(target="x", arms=("cuda:7",)), about())


def test_quick_gives_up_nothing_that_was_asked_for_all_the_same():
    quick = {**QUICK.values, "quick": True}
    (every,) = BenchConfig(target="x", **quick).given_up()
    assert every.startswith("--quick gives up: three processes instead of eight") and "; no peak memory;" in every
    (fewer,) = BenchConfig(target="x", **{**quick, "processes": 2, "memory": True}).given_up()
    assert "three processes" not in fewer and "peak memory" not in fewer and "no break-even batch" in fewer
    assert BenchConfig(target="x").given_up() == []


def test_quick_sits_under_everything_explicit():
    resolved = resolve(BenchConfig, [Layer("the command line", {"target": "x", "quick": True, "processes": 9})])
    assert (resolved.config.processes, resolved.sources["processes"]) == (9, "the command line")
    assert (resolved.config.repeats, resolved.sources["repeats"]) == (QUICK.values["repeats"], "--quick")
    assert resolved.config.context is False


@pytest.mark.parametrize(
    ("key", "value"),
    [("batch", 0), ("processes", 0), ("repeats", 0), ("gate_batch", 0), ("gate_steps", 0), ("lock_clocks_mhz", 0),
     ("seconds", -1.0), ("timeout_s", -1.0), ("min_effect", -0.1), ("seconds", math.nan), ("timeout_s", math.inf),
     ("max_seconds", math.nan), ("warmup_seconds", math.inf)],
)  # fmt: skip
def test_a_number_out_of_range_is_named(key, value):
    with pytest.raises(ConfigError, match=rf"{key} = {value}"):
        BenchConfig(target="x", **{key: value})
