"""An objective in words."""

from __future__ import annotations

import pytest

from hotlap.tools.tune.goal import Goal


@pytest.mark.parametrize(
    ("goal", "words"),
    [
        (Goal("throughput"), "the highest throughput"),
        (Goal("latency"), "the shortest step"),
        (Goal("latency", 5.0), "the highest throughput with 95% of the steps within 5 ms"),
        (Goal("memory"), "the smallest peak memory with at least 95% of the best throughput"),
        (
            Goal("memory", 5.0),
            "the smallest peak memory with at least 95% of the best throughput, both with 95% of the steps within 5 ms",
        ),
    ],
)
def test_an_objective_is_said_with_its_limit(goal, words):
    assert goal.says() == words
