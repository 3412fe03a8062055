"""What a search measured: a row a trial, whatever became of it, and what the rows of one configuration say together."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hotlap.base.stats import MIN_SAMPLES_FOR
from hotlap.tools.tune.turns import error_of, fair_rates

OK = "ok"
OUT_OF_MEMORY = "out of memory"
TIMED_OUT = "timed out"
OUT_OF_BUDGET = "out of budget"
MEMORY_DEATHS = (OUT_OF_MEMORY, "killed")
"""Ends that a smaller batch may avoid."""
PROCESS_NOISE = 0.01
"""What two processes of one configuration are taken to differ by until there were two."""


@dataclass(frozen=True)
class Config:
    """One way to run the workload, with its batch."""

    arm: str
    batch: int

    def __str__(self) -> str:
        return f"{self.arm} at batch {self.batch}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One trial in one process."""

    stage: str
    """What the search was after: scout, batch, arms, switches, recompute, compile, final or confirm."""
    arm: str
    batch: int
    rung: int
    """How long it was timed: three times as long with each rung."""
    attempt: int = 0
    tail: int = 0
    """Samples of the ragged end that was run as well; 0 for none."""
    together: int = 0
    """The number of the process in which it took turns with others; 0 for a process of its own."""
    status: str = OK
    """ok, out of memory, killed, timed out, out of budget, crashed or failed."""
    why: str = ""
    wall_ms: list[float] = field(default_factory=list)
    interval_ms: list[float] = field(default_factory=list)
    peak_bytes: int | None = None
    first_step_s: float | None = None
    num_breaks: int = 0
    num_recompiles: int = 0
    tail_ms: list[float] = field(default_factory=list)
    tail_graphs: int = 0
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    """What the trial cost, its process's start included."""
    at: str = ""
    """When it ended."""

    @property
    def config(self) -> Config:
        return Config(self.arm, self.batch)

    @property
    def ok(self) -> bool:
        return self.status == OK

    @property
    def samples_per_s(self) -> float | None:
        return 1e3 * self.batch / statistics.median(self.wall_ms) if self.ok and self.wall_ms else None

    def is_for(self, arm: str, batch: int, rung: int, attempt: int, tail: int) -> bool:
        """Whether it is that trial, in a process of its own."""
        asked = (arm, batch, rung, attempt, tail, 0)
        return (self.arm, self.batch, self.rung, self.attempt, self.tail, self.together) == asked


@dataclass(frozen=True, kw_only=True)
class GateRow:
    """The numeric gate of one arm."""

    arm: str
    passed: bool
    error: float
    """The largest error of its checks over what is allowed; not finite for an answer that is not."""
    check: str = ""
    """The check it belongs to, with its numbers."""
    why: str = ""
    """Why it did not pass, or could not be judged."""
    seconds: float = 0.0
    out_of_memory: bool = False
    """Whether there was no memory to judge it."""

    @property
    def is_judged(self) -> bool:
        return bool(self.check)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The rows of one configuration together."""

    config: Config
    rate: float
    """Samples a second: the median over processes, or over those in which it took turns, at the machine's one pace."""
    spread: float
    """Half the range between its processes, or within the only one, as a fraction of the rate."""
    peak_bytes: int | None
    num_processes: int
    rows: Sequence[Row] = field(repr=False)
    num_rounds: int = 0
    """Processes in which it took turns with others."""

    @functools.cached_property
    def _steps(self) -> list[float]:
        """All single steps in order: hundreds of thousands, which only percentiles need."""
        return sorted(ms for row in self.rows for ms in (row.interval_ms or row.wall_ms))

    @property
    def p50_ms(self) -> float:
        return statistics.median(self._steps)

    @property
    def p95_ms(self) -> float:
        """Of all single steps, as far as so many support it; the search may use it before a page may print it."""
        return self._steps[math.ceil(0.95 * len(self._steps)) - 1]

    def may_beat(self, best: Estimate, margin: float) -> bool:
        """Whether it may yet be the best, given the noise of both."""
        return self.rate * (1 + max(margin, self.spread)) >= best.rate * (1 - best.spread / 2)

    @property
    def supports_p95(self) -> bool:
        return len(self._steps) >= MIN_SAMPLES_FOR["p95"]


def estimate(rows: Sequence[Row], fair: Sequence[float] = ()) -> Estimate | None:
    """What the good rows of one configuration say; None where there is none. ``fair`` are its rates in turns."""
    good = [row for row in rows if row.samples_per_s is not None]
    if not good:
        return None
    rates = list(fair) or [row.samples_per_s or 0.0 for row in good]
    # One process's blocks, slowest against fastest, say little of other processes, but more than nothing.
    within = [1e3 * good[0].batch / ms for ms in good[0].wall_ms]
    spread = (max(rates) - min(rates)) / 2 if len(rates) > 1 or fair else (max(within) - min(within)) / 4
    rate = statistics.median(rates)
    peaks = [row.peak_bytes for row in good if row.peak_bytes is not None]
    return Estimate(
        config=good[0].config,
        rate=rate,
        spread=spread / rate if rate else 0.0,
        peak_bytes=max(peaks) if peaks else None,
        num_processes=len(good),
        rows=good,
        num_rounds=len(fair),
    )


def estimates(rows: Iterable[Row]) -> dict[Config, Estimate]:
    """Every configuration that ran, in the order it was first tried."""
    by_config: dict[Config, list[Row]] = {}
    for row in rows:
        by_config.setdefault(row.config, []).append(row)
    fair = _fair_rates(by_config)
    found = {config: estimate(of_one, fair.get(config, ())) for config, of_one in by_config.items()}
    return {config: one for config, one in found.items() if one is not None}


def died_at_last(rows: Iterable[Row]) -> set[Config]:
    """Those whose last run, in their final form, failed: shorter trials of them may have run all the same."""
    last = {row.config: row for row in rows if row.tail}
    return {config for config, row in last.items() if not row.ok}


def _fair_rates(by_config: Mapping[Config, Sequence[Row]]) -> dict[Config, list[float]]:
    """By configuration, its rates in the processes in which it took turns."""
    rounds = list(rounds_of(row for rows in by_config.values() for row in rows).values())
    if not rounds:
        return {}
    alone = {config: estimate([row for row in rows if not row.together]) for config, rows in by_config.items()}
    return fair_rates(rounds, {config: one.rate for config, one in alone.items() if one is not None})


def rounds_of(rows: Iterable[Row]) -> dict[int, dict[Config, list[float]]]:
    """Milliseconds a sample by configuration, turn by turn, of each process in which some took turns."""
    rounds: dict[int, dict[Config, list[float]]] = {}
    for row in rows:
        if row.together and row.ok:
            rounds.setdefault(row.together, {})[row.config] = [ms / row.batch for ms in row.wall_ms]
    return rounds


def turns_noise(rows: Iterable[Row]) -> float | None:
    """What one process in turns may be off by, as a fraction; None where there was none."""
    errors = [error_of(found) for found in rounds_of(rows).values()]
    return max(PROCESS_NOISE, math.sqrt(statistics.fmean(error**2 for error in errors))) if errors else None


@dataclass
class Outcome:
    """What a search came to."""

    winner: Config | None
    confirmed: Row | None
    """The winner's last run, in its final form."""
    ranking: list[Estimate]
    refused: dict[str, str] = field(default_factory=dict)
    """Arms and configurations that were refused, with the reason."""
    notes: list[str] = field(default_factory=list)
