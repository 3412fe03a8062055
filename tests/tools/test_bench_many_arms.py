"""Several arms against one baseline: a clear difference is named however many arms share the correction."""

from __future__ import annotations

import numpy as np
import pytest

from hotlap.measure.arms import parse_arm
from hotlap.measure.compared import build_arm, compare_arms, describe_comparison
from hotlap.measure.jobs import ArmFailure
from hotlap.records.measurement import Comparison, Measurement
from hotlap.tools.bench.verdict import give_verdict

ARMS = ("cpu", "cpu:threads=1", "cpu:channels_last", "cpu:bf16", "cpu:compile")


def wall(arm, processes, ms, seed=0):
    """Five samples a process around ``ms``, within 1%."""
    rng = np.random.default_rng(seed)
    return [
        Measurement(quantity="wall", unit="ms", arm=arm, process=p, values=list(ms * (1 + 0.01 * rng.random(5))))
        for p in range(processes)
    ]


def rows(measurements, failed=None):
    names = list(dict.fromkeys(m.arm for m in measurements))
    return [
        build_arm(
            parse_arm(name),
            "arm" if number else "baseline",
            16,
            measurements,
            [],
            footprint=None,
            failure=failed if failed is not None and failed.arm == name else None,
        )
        for number, name in enumerate(names)
    ]


@pytest.mark.parametrize("processes", [6, 7, 8])
@pytest.mark.parametrize("rivals", [1, 2, 3, 4])
def test_twice_the_speed_is_named_whatever_the_number_of_arms(processes, rivals):
    found = wall("cpu", processes, 20.0)
    for number, arm in enumerate(ARMS[1 : rivals + 1], start=1):
        found += wall(arm, processes, 10.0, seed=number)
    comparisons = compare_arms(rows(found), {}, found, min_effect=0.01)
    assert [c.verdict for c in comparisons] == ["faster"] * rivals


def test_the_paired_test_stays_where_it_can_reach_its_level():
    found = wall("cpu", 8, 20.0) + wall("cpu:threads=1", 8, 10.0, seed=1) + wall("cpu:bf16", 8, 10.0, seed=2)
    assert {c.test for c in compare_arms(rows(found), {}, found, 0.01)} == {
        "sign-flip permutation of paired process medians"
    }


def test_an_arm_that_failed_midway_is_compared_as_far_as_it_came():
    failed = ArmFailure(arm="cpu:bf16", what="RuntimeError at batch 16: gone", out_of_memory=True)
    found = wall("cpu", 8, 20.0) + wall("cpu:threads=1", 8, 10.0, seed=1) + wall("cpu:bf16", 3, 10.0, seed=2)
    arms = rows(found, failed)
    comparisons = compare_arms(arms, {}, found, 0.01)
    assert {c.arm: c.p_value is None for c in comparisons} == {"cpu:threads=1": False, "cpu:bf16": True}
    assert give_verdict(arms, {}, comparisons, [failed]).exit_code == 5


def test_a_change_too_small_to_see_is_told_in_readable_figures():
    comparison = Comparison(
        arm="b", baseline="a", quantity="wall", ratio=1.0, low=0.1, high=9.0, p_value=None, test="none",
        min_detectable=363536.149, verdict="inconclusive", reason="the 95% interval of the ratio includes 1",
    )  # fmt: skip
    assert describe_comparison(comparison).endswith("could show >1,000%")
