"""Who is timed once more: processes that take turns, until one configuration leads or the rest are as good as it.

Processes of one configuration differ by more than the blocks of steps within one, so a contest buys new processes and
not ever longer ones. What they differ by is learnt from all configurations that had several.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from hotlap.measure.arms import ArmSpec, parse_arm
from hotlap.tools.tune.budget import Budget, Spent
from hotlap.tools.tune.rows import PROCESS_NOISE, Config, Estimate, Row

NUM_FINALISTS = 2
"""Arms that are compiled, at most."""
CLOSE = 0.03
"""Configurations this close to the best are timed again at the end."""
NUM_LEADERS = 4
"""Configurations that are compared at the end, at most."""
EQUAL = 0.03
"""Configurations that are known to be this close are equal: any of them will do."""
MARGIN = 0.10
"""Slower than the best by more than this, and by more than the noise, is out of a race."""
SURE = 2.0
"""Standard errors by which one must lead another to be faster than it."""
LONG_RUNG = 1
"""Of a second look and of the last run: three times as long as a first trial."""
CONTEST_SHARE = 0.5
"""Of what the search has cost until then; the contest may cost no more."""
GRID_SHARE = 0.25
"""Of what all cells would cost, where arms and batches are listed; no contest goes beyond that."""
GRID_CELLS = 40
"""Listed cells from which on that holds: a quarter of a shorter list is no search."""
FRESH_TRIALS = 4.0
"""Forked trials that the start of a fresh interpreter takes as long as."""


def process_noise(rows: Iterable[Row], least: int = 2) -> float | None:
    """The standard deviation of a process's rate, as a fraction, over all that ran twice.

    None where fewer than ``least`` processes were a second one. Last runs, in fresh interpreters, do not count.
    """
    logs: dict[Config, list[float]] = {}
    for row in rows:
        if row.samples_per_s and not row.tail:
            logs.setdefault(row.config, []).append(math.log(row.samples_per_s))
    several = [values for values in logs.values() if len(values) > 1]
    squares = sum((value - statistics.fmean(values)) ** 2 for values in several for value in values)
    degrees = sum(len(values) - 1 for values in several)
    return max(PROCESS_NOISE, math.sqrt(squares / degrees)) if degrees >= least else None


def leads(ranked: Sequence[Estimate], noise: float | None) -> bool:
    """Whether the first is beyond doubt faster than the second."""
    return noise is not None and _is_behind(ranked[1], ranked[0], noise)


def next_round(ranked: Sequence[Estimate], noise: float | None) -> list[Config]:
    """The configurations to run once more, best first: those that had the fewest processes; none where it is decided.

    It is decided where the first leads all others beyond doubt, and where those that it does not are known to be equal.
    ``noise`` is what a process differs by; where that is unknown the first two are run again to learn it.
    """
    if noise is None:
        return [one.config for one in ranked[:2]] if len(ranked) > 1 else []
    field = [one for one in ranked[:NUM_LEADERS] if not _is_behind(one, ranked[0], noise)]
    if all(SURE * _error(one, field[0], noise) <= EQUAL for one in field[1:]):
        return []
    fewest = min(one.num_processes for one in field)
    return [one.config for one in field if one.num_processes == fewest]


def finalists(known: Mapping[Config, Estimate], leader: ArmSpec, batch: int) -> list[ArmSpec]:
    """The leader and the next arm of another precision or layout that is close to it at the same batch, eager."""
    best = known.get(Config(leader.name, batch))
    close = [c for c in known if c.batch == batch and known[c].rate >= (1 - CLOSE) * (best.rate if best else 0.0)]
    arms = [leader, *(parse_arm(c.arm) for c in sorted(close, key=lambda c: -known[c].rate))]
    found: dict[tuple[str, bool], ArmSpec] = {}
    for arm in arms:
        if not arm.compile and not arm.recompute and arm.graph == leader.graph:
            found.setdefault((arm.precision, arm.channels_last), dataclasses.replace(arm, graph=False))
    return list(found.values())[:NUM_FINALISTS]


def _error(one: Estimate, other: Estimate, noise: float) -> float:
    """The standard error of the ratio of two rates."""
    return noise * math.sqrt(1 / one.num_processes + 1 / other.num_processes)


def _is_behind(one: Estimate, best: Estimate, noise: float) -> bool:
    return one is not best and 1 - one.rate / best.rate > SURE * _error(one, best, noise)


def fell(one: Estimate, last: Row, noise: float | None) -> bool:
    """Whether its last run was slower than its other processes by more than those differ: the median hides that."""
    return (last.samples_per_s or 0.0) < (1 - max(MARGIN, 3 * (noise or 0.0))) * one.rate


def contest_end(lab: Spent, budget: Budget, num_cells: int) -> float:
    """Seconds that may be spent when a contest ends; ``num_cells`` is the size of a listed grid, 0 for none."""
    now = budget.spent(lab)
    first = [row.seconds for row in lab.rows if row.ok and row.rung == 0]
    if num_cells < GRID_CELLS or not first:
        return (1 + CONTEST_SHARE) * now + (NUM_LEADERS * statistics.fmean(first) if first else 0.0)
    trial = statistics.fmean(first)
    last = trial + min(budget.fresh_s, FRESH_TRIALS * trial) + budget.timed(LONG_RUNG) - budget.timed(0)
    gates = sum(gate.seconds for gate in lab.gates.values())
    return GRID_SHARE * num_cells * trial - last + gates
