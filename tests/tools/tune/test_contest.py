"""Who is run again at the end of a search, and when that ends."""

from __future__ import annotations

import math

import pytest
from simulated import Machine

from hotlap.tools.tune.budget import Budget
from hotlap.tools.tune.contest import Noise, contest_end, in_doubt, process_noise, with_fewest
from hotlap.tools.tune.rows import Row, estimates


def rows_of(**rates):
    """A row for each rate of each arm, all at batch 10."""
    return [
        Row(stage="x", arm=arm, batch=10, rung=0, attempt=place, wall_ms=[1e4 / rate], seconds=2.0)
        for arm, values in rates.items()
        for place, rate in enumerate(values)
    ]


def asked(noise, **rates):
    ranked = sorted(estimates(rows_of(**rates)).values(), key=lambda one: -one.rate)
    known = Noise(own=noise)
    return [config.arm for config in with_fewest(in_doubt(ranked, known), known)]


def test_noise_is_pooled_over_all_that_ran_twice_and_unknown_before():
    assert process_noise(rows_of(a=[100], b=[90])) is None
    assert process_noise(rows_of(a=[100, 110], b=[90])) is None
    assert process_noise(rows_of(a=[100, 110], b=[90]), least=1) == pytest.approx(math.log(1.1) / math.sqrt(2))
    assert process_noise(rows_of(a=[100, 110], b=[90, 90])) == pytest.approx(math.log(1.1) / 2)
    last = Row(stage="confirm", arm="a", batch=10, rung=1, tail=6, wall_ms=[999.0])
    assert process_noise([*rows_of(a=[100, 100], b=[90, 90]), last]) == 0.01, "a last run is of another kind"


def test_a_contest_asks_those_in_doubt_that_had_the_fewest_processes():
    assert asked(None, a=[100], b=[97], c=[95]) == ["a", "b"], "the noise is learnt from the first two"
    assert asked(None, a=[100]) == [] and asked(0.1) == []
    assert asked(0.1, a=[100, 100], b=[97], c=[95], d=[40]) == ["b", "c"]
    assert asked(0.1, a=[100, 100], b=[97, 97]) == ["a", "b"], "and they take turns"


def test_a_contest_ends_where_one_leads_and_where_all_are_as_good():
    assert asked(0.01, a=[100, 100], b=[90, 90]) == [], "ahead by ten standard errors"
    assert asked(0.01, a=[100, 100], b=[99.5, 99.5]) == [], "equal within 3%, and that is known"
    assert asked(0.03, a=[100, 100], b=[99.5, 99.5]) == ["a", "b"], "equal, but not known to be"


def test_a_contest_has_its_share_of_the_time():
    machine, budget = Machine(rows=rows_of(a=[100], b=[90], c=[80])), Budget(seconds=1e6, rung_seconds=0.5)
    assert contest_end(machine, budget, 0) == pytest.approx(1.5 * 6 + 4 * 2), (
        "half of what the search took, and a round"
    )
    assert contest_end(machine, budget, 4) == contest_end(machine, budget, 0), "a short list is no grid"
    assert contest_end(machine, budget, 96) == pytest.approx(0.25 * 96 * 2 - (2 + 8 + 1.0)), (
        "with room for the last run"
    )
