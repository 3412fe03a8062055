"""A small training on two cores whose noise and costs are drawn from the processes stored in results/.

A short trial is drawn from the cells of the stored grids, each against the median of its neighbours; a longer one from
the stored pairs, each against the median of its cell. What is random beside that is how the machine's speed depends on
batch and arm.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from dataclasses import dataclass
from pathlib import Path

from random_machines import Contest
from simulated import Machine

from hotlap.measure.arms import ArmSpec, parse_arm
from hotlap.tools.tune.budget import Budget
from hotlap.tools.tune.goal import Goal
from hotlap.tools.tune.rows import Config, Row
from hotlap.tools.tune.search import Search
from hotlap.tools.tune.space import make_space

STORED = Path(__file__).parents[3] / "results" / "tune_regret_2core_quiet_202611.json"
BATCHES = tuple(range(8, 200, 8))
ARMS = [ArmSpec(device="cpu", precision=p, fused=fused) for p in ("fp32", "bf16") for fused in (False, True)]
TIMED_S = 0.3
STEEP = 40
"""Smaller batches differ too much from their neighbours to tell noise from them."""


@dataclass(frozen=True)
class Day:
    """One stored run: what its processes were off by, block by block, and what they cost."""

    short: list[list[float]]
    longer: list[list[float]]
    trial_s: list[float]
    last_s: float
    grid_s: float


def stored_day(name):
    (row,) = json.loads(STORED.read_text())[name]["rows"]
    short = []
    for arm in row["arms"]:
        cells = [cell for cell in row["grid_rows"] if cell["arm"] == arm and cell["batch"] >= STEEP]
        per_sample = [statistics.median(cell["wall_ms"]) / cell["batch"] for cell in cells]
        for place, cell in enumerate(cells):
            near = statistics.median(per_sample[max(0, place - 3) : place] + per_sample[place + 1 : place + 4])
            short.append([ms / cell["batch"] / near for ms in cell["wall_ms"]])
    pairs = [row["best_ms"], row["winner_ms"]]
    centres = [statistics.median(statistics.median(walls) for walls in processes) for processes in pairs]
    longer = [[ms / centre for ms in walls] for centre, cell in zip(centres, pairs, strict=True) for walls in cell]
    trial_s = [cell["seconds"] for cell in row["grid_rows"]]
    (last_s,) = [trial["seconds"] for trial in row["tuner_rows"] if trial["tail"]]
    return Day(short, longer, trial_s, last_s, sum(trial_s))


def small_rate(seed):
    """A launch overhead, a share a sample, caches that large batches leave, and sizes that suit or do not."""
    rng = random.Random(f"rate {seed}")
    overhead, per_sample = rng.uniform(3, 5), rng.uniform(0.18, 0.22)
    fall, start = rng.uniform(0, 0.1), rng.choice([64, 96, 128])
    fused, half = rng.uniform(0.98, 1.05), rng.uniform(0.75, 0.95)
    phases, ripple = [rng.uniform(0, 2 * math.pi) for _ in range(3)], rng.uniform(0, 0.02)

    def rate(arm, batch):
        waves = sum(math.sin(batch / width + phase) for width, phase in zip((9, 17, 31), phases, strict=True))
        left = 1 - fall * max(0, batch - start) / (BATCHES[-1] - start)
        speed = (fused if arm.fused else 1.0) * (half if arm.precision == "bf16" else 1.0)
        return 1e3 * batch / (overhead + per_sample * batch) * left * (1 + ripple * waves) * speed

    return rate


@dataclass
class TwoCores(Machine):
    day: Day | None = None

    def _run(self, stage, config, rung, attempt, tail):
        rng = random.Random(f"{self.seed} {config} {rung} {attempt} {tail}")
        off = rng.choice(self.day.longer if rung else self.day.short)
        cost = self.day.last_s if tail else rng.choice(self.day.trial_s) + TIMED_S * (3**rung - 1)
        ms = 1e3 * config.batch / self.rate(parse_arm(config.arm), config.batch)
        walls = [ms * factor for factor in off]
        common = {"stage": stage, "arm": config.arm, "batch": config.batch, "rung": rung, "attempt": attempt}
        return Row(**common, tail=tail, seconds=cost, wall_ms=walls, interval_ms=walls, peak_bytes=config.batch)


def small_contest(seed, day, about):
    """The search beside the whole grid on one machine; the choice is judged without noise."""
    rate = small_rate(seed)
    machine = TwoCores(seed=seed, rate=rate, day=day)
    space = make_space(about, mode="train", arms=tuple(arm.name for arm in ARMS), batches=BATCHES)
    outcome = Search(space, machine, Goal("throughput"), Budget(seconds=300.0, rung_seconds=TIMED_S)).run()
    cells = {Config(arm.name, batch): rate(arm, batch) for arm in ARMS for batch in BATCHES}
    best = max(cells, key=lambda cell: cells[cell])
    share = sum(row.seconds for row in machine.rows) / day.grid_s
    return Contest(1 - cells[outcome.winner] / cells[best], share, outcome.winner, best, machine.rows)
