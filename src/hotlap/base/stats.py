"""Statistics of timings taken in several processes: intervals, tests, and the three verdicts.

The unit of replication is the process, because one process's samples share its memory layout, clocks and luck. Samples
therefore come as one list a process; the centre is the median of the processes' medians.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Samples = Sequence[Sequence[float]]
"""One list of samples for each process."""

ALPHA = 0.02
"""Level of the exact test. Below 0.05, so that the whole rule, judged by A against A, stays under 5% false alarms."""
CONFIDENCE = 0.95
RESAMPLES = 4000
MIN_SAMPLES_FOR = {"p50": 5, "p90": 64, "p95": 90, "p99": 459}
"""Samples a percentile needs before it is printed: a p99 from fewer than 459 is a guess even when none exceeds it."""
FAMILY_ALPHA = 0.05
"""Level after correction for several comparisons; the fewest processes could never reach ALPHA for many arms."""
CLEAR_GAP = 0.10
"""A difference this large on which every process agrees is named even where the processes are too few for a test."""
FEWEST_PROCESSES = 3
"""Fewer can agree on nothing: one process agrees with itself, and two against two part by chance one time in three."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Decision:
    """What a comparison of two sets of samples shows."""

    ratio: Interval
    """Baseline over candidate: above 1 the candidate is faster."""
    p_value: float | None
    test: str
    min_detectable: float
    unanimous: bool
    """Every process agrees on the direction; unpaired, the two groups do not overlap at all."""
    verdict: str
    reason: str


def process_medians(samples: Samples) -> np.ndarray:
    """The median of each process."""
    return np.array([np.median(values) for values in samples], dtype=np.float64)


def centre(samples: Samples) -> float:
    """The median of the processes' medians."""
    return float(np.median(process_medians(samples)))


def _pools(samples: Samples, rng: np.random.Generator) -> np.ndarray:
    """Resampled medians of every process, [processes, RESAMPLES].

    The places that a resample's middle values have among the sorted samples are drawn as what they are, order
    statistics of uniform numbers. A small model makes a hundred thousand steps a second: to draw all of those, 4000
    times, takes gigabytes.
    """
    rows = []
    for values in samples:
        data = np.sort(np.asarray(values, dtype=np.float64))
        n, middle = len(data), (len(data) + 1) // 2
        lower = rng.beta(middle, n - middle + 1, size=RESAMPLES)
        upper = lower if n % 2 else lower + (1 - lower) * rng.beta(1, n - middle, size=RESAMPLES)
        places = np.minimum((np.stack([lower, upper]) * n).astype(np.int64), n - 1)
        rows.append(data[places].mean(axis=0))
    return np.stack(rows)


def _bootstrap_centres(pools: np.ndarray, chosen: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Centres of RESAMPLES draws of whole processes (``chosen``), each with its iterations resampled."""
    inner = rng.integers(0, RESAMPLES, size=chosen.shape)
    return np.median(pools[chosen, inner], axis=1)


def _quantiles(values: np.ndarray) -> tuple[float, float]:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


def interval(samples: Samples, seed: int = 0) -> Interval:
    """The centre with its hierarchical bootstrap interval: over processes first, then iterations."""
    rng = np.random.default_rng(seed)
    pools = _pools(samples, rng)
    chosen = rng.integers(0, len(samples), size=(RESAMPLES, len(samples)))
    return Interval(centre(samples), *_quantiles(_bootstrap_centres(pools, chosen, rng)))


def ratio_interval(base: Samples, other: Samples, *, paired: bool, seed: int = 0) -> Interval:
    """Time of ``base`` over time of ``other`` with its interval.

    Paired samples were taken side by side in the same processes: the ratio is the median of the processes' own ratios,
    so that a process that is slow throughout says nothing about either. Unpaired, it is the ratio of the centres.
    """
    rng = np.random.default_rng(seed)
    base_pools, other_pools = _pools(base, rng), _pools(other, rng)
    chosen = rng.integers(0, len(base), size=(RESAMPLES, len(base)))
    if paired:
        value = float(np.median(process_medians(base) / process_medians(other)))
        inner = rng.integers(0, RESAMPLES, size=(2, *chosen.shape))
        ratios = np.median(base_pools[chosen, inner[0]] / other_pools[chosen, inner[1]], axis=1)
    else:
        value = centre(base) / centre(other)
        others = rng.integers(0, len(other), size=(RESAMPLES, len(other)))
        ratios = _bootstrap_centres(base_pools, chosen, rng) / _bootstrap_centres(other_pools, others, rng)
    return Interval(value, *_quantiles(ratios))


def sign_flip_p(differences: np.ndarray) -> float:
    """Two-sided p that differences this far from 0 arise when each sign is a coin's; exact up to 16 values."""
    data = differences
    n = len(data)
    if n <= 16:
        signs = 1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    else:
        signs = 1 - 2 * np.random.default_rng(0).integers(0, 2, size=(1 << 16, n))
    observed = abs(data.sum())
    return float(np.mean(np.abs(signs @ data) >= observed * (1 - 1e-12)))


def mann_whitney_p(first: np.ndarray, second: np.ndarray) -> float:
    """Two-sided p of the Mann-Whitney test on process medians, exact for the small numbers we have."""
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(first, second, alternative="two-sided").pvalue)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """The p-values corrected for having asked several questions; None stays None."""
    order = sorted((i for i, p in enumerate(p_values) if p is not None), key=lambda i: p_values[i] or 0.0)
    corrected: list[float | None] = [None] * len(p_values)
    running = 0.0
    for rank, index in enumerate(order):
        p = p_values[index]
        assert p is not None
        running = max(running, min(1.0, p * (len(order) - rank)))
        corrected[index] = running
    return corrected


def min_detectable(base: np.ndarray, other: np.ndarray, ratio: Interval, *, paired: bool) -> float:
    """The smallest true change, as a fraction, that four of five repeats would name; inf from one process.

    The error is the larger of the one between processes and the one the bootstrap interval shows, since a verdict has
    to satisfy both.
    """
    from scipy.stats import t

    if min(len(base), len(other)) < 2:
        return math.inf
    logs_base, logs_other = np.log(base), np.log(other)
    if paired:
        error = float(np.std(logs_base - logs_other, ddof=1)) / math.sqrt(len(base))
    else:
        error = math.sqrt(np.var(logs_base, ddof=1) / len(base) + np.var(logs_other, ddof=1) / len(other))
    freedom = min(len(base), len(other)) - 1
    error = max(error, math.log(ratio.high / ratio.low) / (2 * 1.96))
    return float(math.exp((t.ppf(1 - ALPHA / 2, freedom) + t.ppf(0.8, freedom)) * error) - 1)


def _test(base: np.ndarray, other: np.ndarray, *, paired: bool) -> tuple[float | None, str]:
    """The p-value and the test's name; None where no outcome of so few processes could reach ALPHA."""
    if paired and 2 / 2 ** len(base) <= ALPHA:
        return sign_flip_p(np.log(base) - np.log(other)), "sign-flip permutation of paired process medians"
    if 2 / math.comb(len(base) + len(other), len(base)) <= ALPHA:
        return mann_whitney_p(base, other), "Mann-Whitney on process medians"
    return None, "none: too few processes"


def compare(base: Samples, other: Samples, *, paired: bool, min_effect: float, seed: int = 0) -> Decision:
    """Whether ``other`` is faster or slower than ``base``, or this sample cannot tell.

    A difference is named when the 95% interval of the ratio excludes 1, it is at least ``min_effect``, and the exact
    test agrees; or, where so few processes cannot pass a test, when every process agrees on at least CLEAR_GAP.
    """
    medians, others = process_medians(base), process_medians(other)
    ratio = ratio_interval(base, other, paired=paired, seed=seed)
    p_value, test = _test(medians, others, paired=paired)
    detectable = min_detectable(medians, others, ratio, paired=paired)
    unanimous = _unanimous(medians, others, paired=paired)
    verdict, reason = decide(ratio, p_value, p_value, min_effect=min_effect, unanimous=unanimous)
    return Decision(ratio, p_value, test, detectable, unanimous, verdict, reason)


def _unanimous(base: np.ndarray, other: np.ndarray, *, paired: bool) -> bool:
    if min(len(base), len(other)) < FEWEST_PROCESSES:
        return False
    if paired:
        return bool((base > other).all() or (base < other).all())
    return bool(base.min() > other.max() or other.min() > base.max())


def decide(
    ratio: Interval, p_value: float | None, family_p: float | None, *, min_effect: float, unanimous: bool
) -> tuple[str, str]:
    """The verdict and why; ``family_p`` is the p-value corrected for all comparisons of the run."""
    direction = "faster" if ratio.value > 1 else "slower"
    size = abs(math.log(ratio.value))
    if ratio.low <= 1 <= ratio.high:
        return "inconclusive", "the 95% interval of the ratio includes 1"
    if size < math.log1p(min_effect):
        return "inconclusive", f"the difference is below {min_effect:.1%}, the smallest worth naming"
    if p_value is not None and family_p is not None and p_value <= ALPHA and family_p <= FAMILY_ALPHA:
        return direction, f"the interval excludes 1 and p = {p_value:.4f}"
    if unanimous and size >= math.log1p(CLEAR_GAP):
        return direction, f"every process agrees on a difference of at least {CLEAR_GAP:.0%}"
    if p_value is None:
        return "inconclusive", f"too few processes to name a difference under {CLEAR_GAP:.0%}"
    return "inconclusive", f"the exact test does not exclude chance (p = {max(p_value, family_p or 0):.3f})"


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """The percentiles that so many samples support."""
    return {
        name: float(np.quantile(values, int(name[1:]) / 100))
        for name, needed in MIN_SAMPLES_FOR.items()
        if len(values) >= needed
    }


def count_outliers(samples: Samples) -> int:
    """Samples more than five robust standard deviations from their process's median; they stay in."""
    total = 0
    for values in samples:
        data = np.asarray(values, dtype=np.float64)
        spread = 1.4826 * np.median(np.abs(data - np.median(data)))
        total += int(np.sum(np.abs(data - np.median(data)) > 5 * spread)) if spread > 0 else 0
    return total
