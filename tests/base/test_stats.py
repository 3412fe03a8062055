"""The statistics, judged by simulation: false alarms, power, cover, and known cases."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from hotlap.base import stats
from hotlap.base.stats import ALPHA, Interval

TRIALS = 300
PROCESSES, BLOCKS = 8, 10


@pytest.fixture(autouse=True)
def _fewer_resamples(monkeypatch):
    """A tenth of the resamples: the simulations judge the rule, which does not depend on them."""
    monkeypatch.setattr(stats, "RESAMPLES", 400)


def draw(rng, kind, processes=PROCESSES):
    """Two identical arms timed side by side: the process's own level, then noise of each block."""
    level = 1 + 0.05 * rng.standard_normal((processes, 1))  # shared by both arms of a process
    own = 1 + 0.01 * rng.standard_normal((2, processes, 1))
    if kind == "bimodal":  # half of the processes land on a slow memory layout, each arm on its own
        own = own * (1 + 0.04 * rng.integers(0, 2, size=(2, processes, 1)))
    noise = 0.01 * rng.standard_normal((2, processes, BLOCKS))
    if kind == "heavy":  # a third moment without end: preemptions, page faults
        noise = 0.01 * np.abs(rng.standard_t(2, size=(2, processes, BLOCKS)))
    return level * own[0] * (1 + noise[0]), level * own[1] * (1 + noise[1])


def upper_bound(rate, trials):
    """Three standard errors above a rate: what chance alone may show in so many trials."""
    return rate + 3 * math.sqrt(rate * (1 - rate) / trials)


@pytest.mark.parametrize("kind", ["normal", "heavy", "bimodal"])
@pytest.mark.parametrize("paired", [True, False])
def test_a_against_a_is_named_different_in_at_most_one_of_twenty(kind, paired):
    rng = np.random.default_rng(1)
    false = 0
    for _ in range(TRIALS):
        base, other = draw(rng, kind)
        false += stats.compare(base, other, paired=paired, min_effect=0.0).verdict != "inconclusive"
    assert false / TRIALS <= 0.05


@pytest.mark.parametrize("processes", [3, 4, 5, 6])
def test_few_processes_do_not_raise_the_false_alarms(processes):
    rng = np.random.default_rng(2)
    false = 0
    for _ in range(TRIALS):
        base, other = draw(rng, "bimodal", processes)
        false += stats.compare(base, other, paired=True, min_effect=0.0).verdict != "inconclusive"
    assert false / TRIALS <= 0.05


def test_a_true_change_of_the_detectable_size_is_found():
    rng = np.random.default_rng(3)
    sizes = [stats.compare(*draw(rng, "normal"), paired=True, min_effect=0.0).min_detectable for _ in range(50)]
    effect = float(np.median(sizes))
    found = 0
    for _ in range(TRIALS):
        base, other = draw(rng, "normal")
        decision = stats.compare(base * (1 + effect), other, paired=True, min_effect=0.0)
        found += decision.verdict == "faster"
        assert decision.verdict != "slower"
    assert found / TRIALS >= 0.70


@pytest.mark.parametrize("paired", [True, False])
def test_the_interval_of_the_ratio_covers_the_true_ratio(paired):
    rng = np.random.default_rng(4)
    covered = 0
    for _ in range(TRIALS):
        base, other = draw(rng, "normal")
        got = stats.ratio_interval(base * 1.3, other, paired=paired)
        covered += got.low <= 1.3 <= got.high
    # A bootstrap over eight processes is a little too narrow; the exact test beside it is what holds the line.
    assert covered / TRIALS >= 0.88


def test_the_interval_of_a_centre_covers_the_true_centre():
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(TRIALS):
        samples = 5.0 * (1 + 0.02 * rng.standard_normal((PROCESSES, 1)) + 0.01 * rng.standard_normal((PROCESSES, 10)))
        got = stats.interval(samples)
        assert got.low <= got.value <= got.high
        covered += got.low <= 5.0 <= got.high
    assert covered / TRIALS >= 0.88


def test_pairing_forgives_a_process_that_is_slow_throughout():
    rng = np.random.default_rng(6)
    level = np.array([1, 1, 3, 1, 2, 1, 1, 5.0])[:, None]
    noise = 1 + 0.001 * rng.standard_normal((2, 8, 10))
    paired = stats.compare(1.1 * level * noise[0], level * noise[1], paired=True, min_effect=0.01)
    assert paired.verdict == "faster"
    assert paired.ratio.value == pytest.approx(1.1, rel=0.005)
    apart = stats.compare(1.1 * level * noise[0], level * noise[1], paired=False, min_effect=0.01)
    assert apart.verdict == "inconclusive"


def test_above_one_means_that_the_candidate_is_faster():
    base, quicker = [[10.0, 10.1, 9.9]] * 8, [[5.0, 5.1, 4.9]] * 8
    decision = stats.compare(base, quicker, paired=True, min_effect=0.01)
    assert (decision.verdict, decision.ratio.value) == ("faster", 2.0)
    decision = stats.compare(quicker, base, paired=True, min_effect=0.01)
    assert (decision.verdict, decision.ratio.value) == ("slower", 0.5)


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([1.0, 1.0, 1.0, 1.0], 2 / 16),
        ([-1.0, -2.0, -3.0], 2 / 8),
        ([1.0, -1.0], 1.0),
        ([1, 2, 3, 4, 5, 6, 7, -1], 6 / 256),  # sums of at least 26: one side by hand, then doubled
        ([0.0, 0.0, 0.0], 1.0),
    ],
)
def test_sign_flips_are_counted_exactly(differences, p):
    assert stats.sign_flip_p(np.array(differences, dtype=float)) == pytest.approx(p)


def test_sign_flips_of_many_values_are_drawn():
    assert stats.sign_flip_p(np.ones(40)) < 1e-3
    rng = np.random.default_rng(0)
    assert stats.sign_flip_p(rng.standard_normal(40)) > 0.01


def test_mann_whitney_is_exact_for_small_groups():
    low, high = np.arange(4.0), np.arange(4.0) + 10
    assert stats.mann_whitney_p(low, high) == pytest.approx(2 / math.comb(8, 4))
    mixed = np.array([1.0, 3.0, 5.0, 7.0]), np.array([2.0, 4.0, 6.0, 8.0])
    assert stats.mann_whitney_p(*mixed) == mannwhitneyu(*mixed, method="exact").pvalue


def test_holm_corrects_over_all_questions_and_leaves_the_unasked():
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert stats.holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert stats.holm([0.01, None, 0.02]) == [0.02, None, 0.02]
    assert stats.holm([]) == []


@pytest.mark.parametrize(
    ("count", "names"),
    [(4, []), (5, ["p50"]), (63, ["p50"]), (64, ["p50", "p90"]), (90, ["p50", "p90", "p95"]),
     (458, ["p50", "p90", "p95"]), (459, ["p50", "p90", "p95", "p99"])],
)  # fmt: skip
def test_a_percentile_is_given_only_when_the_samples_support_it(count, names):
    assert list(stats.percentiles(list(range(count)))) == names


def test_p99_needs_459_because_fewer_may_all_lie_below_it():
    assert 0.99**458 > 0.01 > 0.99**459


def test_percentiles_are_quantiles():
    assert stats.percentiles(list(range(1001)))["p99"] == pytest.approx(990)


@pytest.mark.parametrize(
    ("gap", "verdict"), [(1.30, "faster"), (1.05, "inconclusive"), (1 / 1.30, "slower"), (1 / 1.05, "inconclusive")]
)
def test_three_processes_name_only_what_every_one_of_them_shows(gap, verdict):
    rng = np.random.default_rng(7)
    base = 1 + 0.002 * rng.standard_normal((3, 10))
    other = (1 + 0.002 * rng.standard_normal((3, 10))) / gap
    decision = stats.compare(base, other, paired=True, min_effect=0.01)
    assert decision.p_value is None
    assert decision.verdict == verdict
    assert ("too few processes" if verdict == "inconclusive" else "every process agrees") in decision.reason


@pytest.mark.parametrize("processes", [1, 2])
def test_fewer_than_three_processes_name_nothing_however_large_it_looks(processes):
    rng = np.random.default_rng(7)
    base, other = 2 + 0.002 * rng.standard_normal((processes, 10)), 1 + 0.002 * rng.standard_normal((processes, 10))
    for paired in (True, False):
        decision = stats.compare(base, other, paired=paired, min_effect=0.01)
        assert decision.verdict == "inconclusive"
        assert "too few processes" in decision.reason


def test_three_processes_that_overlap_name_nothing():
    ratio = Interval(1.5, 1.2, 1.8)
    assert stats.decide(ratio, None, None, min_effect=0.01, unanimous=False)[0] == "inconclusive"
    assert stats.decide(ratio, None, None, min_effect=0.01, unanimous=True)[0] == "faster"


@pytest.mark.parametrize(
    ("ratio", "p", "verdict", "word"),
    [
        (Interval(1.2, 0.99, 1.4), 0.001, "inconclusive", "includes 1"),
        (Interval(1.005, 1.001, 1.009), 0.001, "inconclusive", "below 1.0%"),
        (Interval(1.2, 1.1, 1.3), ALPHA + 0.01, "inconclusive", "does not exclude chance"),
        (Interval(1.2, 1.1, 1.3), 0.001, "faster", "p = 0.0010"),
        (Interval(0.8, 0.7, 0.9), 0.001, "slower", "p = 0.0010"),
    ],
)
def test_each_condition_of_the_rule_can_stop_a_verdict(ratio, p, verdict, word):
    got, reason = stats.decide(ratio, p, p, min_effect=0.01, unanimous=False)
    assert got == verdict
    assert word in reason


def test_one_process_can_detect_nothing():
    decision = stats.compare([[1.0, 1.1]], [[9.0, 9.1]], paired=True, min_effect=0.01)
    assert decision.min_detectable == math.inf
    assert decision.p_value is None


def test_more_noise_means_that_less_can_be_detected():
    rng = np.random.default_rng(8)

    def size(spread):
        base, other = 1 + spread * rng.standard_normal((2, 8, 10))
        return stats.compare(base, other, paired=True, min_effect=0.01).min_detectable

    assert size(0.001) < size(0.01) < size(0.1)


def test_outliers_are_counted_and_stay_in():
    values = [1.0, 1.01, 0.99, 1.02, 0.98, 50.0]
    assert stats.count_outliers([values, values[:5]]) == 1
    assert stats.count_outliers([[2.0, 2.0, 2.0, 9.0]]) == 0, "without any spread there is no scale to judge by"
    assert stats.centre([values]) == pytest.approx(1.005)


def test_the_same_samples_give_the_same_interval():
    rng = np.random.default_rng(9)
    samples = rng.random((8, 10)) + 1
    assert stats.interval(samples) == stats.interval(samples)


def test_the_bound_of_the_simulations_is_what_chance_allows():
    assert upper_bound(0.02, TRIALS) < 0.05, "the nominal level leaves room for chance below the promised 5%"


def test_many_arms_do_not_make_a_clear_difference_unnameable():
    """Eight processes reach p = 0.0078 at best; corrected for ten arms that is 0.078, and still the answer is plain."""
    clear = stats.Interval(1.5, 1.45, 1.55)
    assert stats.decide(clear, 0.0078, 0.078, min_effect=0.01, unanimous=True)[0] == "faster"
    assert stats.decide(clear, 0.0078, 0.078, min_effect=0.01, unanimous=False)[0] == "inconclusive"
    small = stats.Interval(1.05, 1.04, 1.06)
    assert stats.decide(small, 0.0078, 0.078, min_effect=0.01, unanimous=True)[0] == "inconclusive"
    assert stats.decide(small, 0.0078, 0.0234, min_effect=0.01, unanimous=True)[0] == "faster"


@pytest.mark.parametrize("num", [1, 2, 5, 6, 50, 51])
def test_resampled_medians_are_those_of_resamples(num, monkeypatch):
    draws = 50_000
    monkeypatch.setattr(stats, "RESAMPLES", draws)
    data = np.random.default_rng(8).permutation(num).astype(float)
    (quick,) = stats._pools([data], np.random.default_rng(9))
    plain = np.median(np.random.default_rng(10).choice(data, size=(draws, num)), axis=1)
    steps = np.unique(np.concatenate([quick, plain]))
    apart = [abs(np.mean(quick <= step) - np.mean(plain <= step)) for step in steps]
    assert max(apart) < 2 * math.sqrt(2 / draws)  # Kolmogorov and Smirnov: exceeded by one right program in a thousand


def test_the_many_steps_of_a_small_model_take_little_memory(monkeypatch):
    monkeypatch.setattr(stats, "RESAMPLES", 4000)
    samples = np.random.default_rng(11).lognormal(size=(3, 200_000)).tolist()
    tracemalloc.start()
    try:
        found = stats.interval(samples)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.low <= found.value <= found.high and found.high - found.low < 0.02
    assert peak < 64 * 2**20  # the samples themselves are 4.6 MiB; 4000 resamples of one process are 6 GiB
