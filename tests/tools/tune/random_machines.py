"""Machines drawn at random, with the costs of trials on a card, and the whole grid beside the search on each."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from simulated import Machine

from hotlap.measure.arms import ArmSpec, parse_arm
from hotlap.tools.tune.budget import Budget
from hotlap.tools.tune.goal import Goal
from hotlap.tools.tune.rows import Config, Row
from hotlap.tools.tune.search import Search
from hotlap.tools.tune.space import make_space

FRESH_S = 9.0
"""What a fresh interpreter takes to start, more than a fork."""
TRIAL_S, COMPILE_S, TIMED_S = 2.2, 25.0, 0.5


class Card(Machine):
    """Forked trials of two seconds and a half, compiled ones of half a minute; the last run in a fresh interpreter."""

    def _run(self, stage, config, rung, attempt, tail):
        row = super()._run(stage, config, rung, attempt, tail)
        extra = FRESH_S + (self.compile_s if parse_arm(config.arm).compile else 0.0) if tail else 0.0
        object.__setattr__(row, "seconds", row.seconds + extra)
        return row


def random_rate(seed):
    """A model of its own: how precision, layout, switches, recording and compiling act, and where batches saturate."""
    rng = random.Random(seed)
    tf32, half = rng.uniform(1.0, 2.5), rng.uniform(1.2, 4.5)
    speed = {"fp32": 1.0, "tf32": tf32, "bf16": half, "fp16": half * rng.uniform(0.93, 1.07)}
    layout = {"fp32": rng.uniform(0.9, 1.1), "tf32": rng.uniform(0.85, 1.3), "bf16": rng.uniform(0.85, 1.5)}
    layout["fp16"] = layout["bf16"] * rng.uniform(0.97, 1.03)
    overhead, per_sample = rng.uniform(2.0, 25.0), 10 ** rng.uniform(-1.5, 0.5)
    fused, bench = rng.uniform(0.0, 4.0), rng.uniform(0.97, 1.12)
    graph, compiled, compiled_overhead = rng.uniform(0.1, 0.5), rng.uniform(0.9, 1.5), rng.uniform(0.5, 1.1)

    def rate(arm, batch):
        fast = speed[arm.precision] * (layout[arm.precision] if arm.channels_last else 1.0)
        fast *= (bench if arm.cudnn_benchmark else 1.0) * (compiled if arm.compile else 1.0)
        host = overhead * (graph if arm.graph else compiled_overhead if arm.compile else 1.0)
        optimizer = 5.0 - (fused if arm.fused else 0.0)
        busy = batch * per_sample / fast + optimizer
        return 1e3 * batch / (max(host, busy) + 0.1 * min(host, busy))

    return rate


@dataclass
class Contest:
    """One search beside its grid."""

    regret: float
    """What the winner is truly slower by than the grid's best."""
    share: float
    """Of the grid's measuring time that the search took."""
    winner: Config
    best: Config
    rows: list[Row]


def contest(seed, about, *, arms, batches, noise=0.01, budget=60.0):
    """The search beside the whole grid of ``arms`` by ``batches`` on one machine; the grid is judged without noise."""
    rate = random_rate(seed)
    machine = Card(seed=seed, noise=noise, rate=rate, trial_s=TRIAL_S, compile_s=COMPILE_S)
    names = tuple(arm.name for arm in arms)
    space = make_space(about, mode="train", arms=names, batches=tuple(batches))
    outcome = Search(space, machine, Goal("throughput"), Budget(seconds=budget, rung_seconds=TIMED_S)).run()
    cells = {Config(arm.name, batch): rate(arm, batch) for arm in arms for batch in batches}
    best = max(cells, key=lambda cell: cells[cell])
    grid_s = sum((COMPILE_S if arm.compile else TRIAL_S) + TIMED_S for arm in arms for _ in batches)
    tuner_s = sum(row.seconds for row in machine.rows)
    regret = 1 - rate(parse_arm(outcome.winner.arm), outcome.winner.batch) / cells[best]
    return Contest(regret, tuner_s / grid_s, outcome.winner, best, machine.rows)


def recorded_arms(layouts=(False, True)):
    """Half precisions and TF32 by layout, optimizer and recording: no compilation."""
    kinds = itertools.product(("tf32", "bf16", "fp16"), layouts, (False, True), (False, True))
    return [ArmSpec(device="cuda", precision=p, channels_last=c, fused=f, graph=g) for p, c, f, g in kinds]
