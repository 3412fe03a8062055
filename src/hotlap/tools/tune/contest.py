"""Who is timed once more: until one configuration leads, or the rest are as good as it.

Processes of one configuration differ by more than the blocks of steps within one, so a contest buys new processes and
not ever longer ones. What they differ by is learnt from all configurations that had several. On a CPU most of it is the
machine's pace, so there one process holds all contenders, and they take turns: see :mod:`hotlap.tools.tune.turns`.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from hotlap.measure.arms import ArmSpec, parse_arm
from hotlap.tools.tune.budget import Budget, Spent
from hotlap.tools.tune.rows import PROCESS_NOISE, Config, Estimate, Row, turns_noise

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
FAR = 0.5
"""The same before anybody knows what processes differ by, where turns cost little."""
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


@dataclasses.dataclass(frozen=True)
class Noise:
    """What a rate may be off by, as a fraction; None where that is not known."""

    own: float | None
    """Of a process of its own: its standard deviation."""
    turns: float | None = None
    """Of one in which several took turns."""

    def error(self, one: Estimate) -> float | None:
        """The standard error of a rate."""
        noise, count = (self.turns, one.num_rounds) if one.num_rounds else (self.own, one.num_processes)
        return None if noise is None else noise / math.sqrt(count)

    def between(self, one: Estimate, other: Estimate) -> float | None:
        """The standard error of the ratio of two rates."""
        errors = self.error(one), self.error(other)
        return None if None in errors else math.hypot(*errors)  # type: ignore[arg-type]

    @property
    def margin(self) -> float:
        """Slower than the best by more than this, when each was timed alone, is out of a contest."""
        return max(MARGIN, SURE * math.sqrt(2) * (self.own or 0.0))


def noise_of(rows: Sequence[Row], least: int = 2) -> Noise:
    """What all trials so far say of it."""
    return Noise(process_noise(rows, least), turns_noise(rows))


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


def leads(ranked: Sequence[Estimate], noise: Noise) -> bool:
    """Whether the first is beyond doubt faster than the second."""
    return _is_behind(ranked[1], ranked[0], noise)


def in_doubt(ranked: Sequence[Estimate], noise: Noise) -> list[Estimate]:
    """Those among whom the best is, best first; none where it is decided.

    It is decided where the first leads all others beyond doubt, and where those that it does not are known to be equal.
    Where noise is unknown the first two are run again to learn it.
    """
    if any(noise.error(one) is None for one in ranked[:2]):
        return list(ranked[:2]) if len(ranked) > 1 else []
    field = [one for one in ranked[:NUM_LEADERS] if not _is_behind(one, ranked[0], noise)]
    is_decided = all(_is_equal(one, field[0], noise) for one in field[1:])
    return [] if is_decided else field


def with_fewest(field: Sequence[Estimate], noise: Noise) -> list[Config]:
    """Of those in doubt, whom to run once more in a process of its own: those that had the fewest."""
    if noise.own is None:
        return [one.config for one in field]
    fewest = min((one.num_processes for one in field), default=0)
    return [one.config for one in field if one.num_processes == fewest]


def who_meets(field: Sequence[Estimate], noise: Noise, most: int) -> list[Config]:
    """Of those in doubt, so many to take turns: the first, and those not known to be as good, least known first."""
    others = sorted((one for one in field[1:] if not _is_equal(one, field[0], noise)), key=lambda one: one.num_rounds)
    return [one.config for one in (field[0], *others)][:most]


def can_take_turns(configs: Sequence[Config]) -> bool:
    """Whether one process may hold them all: on a CPU whose freed memory is kept, for that is the whole process's.

    A card's pace is its own, and its memory may not hold two that were tuned to fill it.
    """
    arms = [parse_arm(config.arm) for config in configs]
    return len(arms) > 1 and all(arm.device == "cpu" and arm.keep_memory for arm in arms)


def have_met(one: Config, other: Config, rows: Iterable[Row]) -> bool:
    """Whether two took turns in one process."""
    rounds: dict[int, set[Config]] = {}
    for row in rows:
        if row.together and row.ok:
            rounds.setdefault(row.together, set()).add(row.config)
    return any({one, other} <= met for met in rounds.values())


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


def _is_behind(one: Estimate, best: Estimate, noise: Noise) -> bool:
    error = noise.between(one, best)
    return one is not best and error is not None and 1 - one.rate / best.rate > SURE * error


def _is_equal(one: Estimate, best: Estimate, noise: Noise) -> bool:
    error = noise.between(one, best)
    return error is not None and SURE * error <= EQUAL


def fell(one: Estimate, last: Row, rows: Sequence[Row]) -> bool:
    """Whether its last run was slower than its other processes by more than those differ: the median hides that.

    Where a trial was run right after it, that says how fast the machine was then.
    """
    beside = [row for row in rows if row.config == one.config and row.stage == last.stage and row.ok and not row.tail]
    if beside:
        return (last.samples_per_s or 0.0) < (1 - MARGIN) * (beside[-1].samples_per_s or 0.0)
    return (last.samples_per_s or 0.0) < (1 - max(MARGIN, 3 * (process_noise(rows) or 0.0))) * one.rate


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
