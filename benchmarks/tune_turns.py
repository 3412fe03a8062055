"""What taking turns is worth: one pair compared again and again, on a machine at rest and on one that is disturbed.

    python -m benchmarks.tune_turns --out tune_turns.json [--rounds 12]

Two configurations of a small bilstm's training, with and without the fused optimizer, are compared twice a round:
by two trials, a process each, and by one process in which they take turns. The same number of steps is timed. What
comparisons of the same two differ by is noise. The disturbance is one process a core that multiplies or adds arrays, at
times, for half a second to five.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from hotlap.measure.nursery import COMPILERS, Nursery
from hotlap.records.codec import encode
from hotlap.records.environment import capture
from hotlap.tools.tune import TuneConfig
from hotlap.tools.tune.budget import Budget
from hotlap.tools.tune.lab import ProcessLab
from hotlap.tools.tune.rows import Config, Row
from hotlap.tools.tune.turns import beside_others

PAIR = [Config("cpu:bf16+fused+keep_memory", 192), Config("cpu:bf16+keep_memory", 192)]
SETTINGS: dict[str, Any] = {
    "target": "bilstm", "mode": "train", "workload": {"hidden": 16, "length": 32, "embedding": 16},
    "warmup_seconds": 1.0,
}  # fmt: skip
SECONDS = 0.6
"""Timed of each in a round; the second rung is three times that."""


def disturb(seed: int) -> None:
    """Work that comes and goes, for ever."""
    rng = random.Random(seed)
    square, long = np.random.rand(300, 300), np.random.rand(3_000_000)
    while True:
        end = time.monotonic() + rng.uniform(0.5, 5.0)
        share, multiplies = rng.choice((0.0, 0.0, 0.3, 0.6, 1.0)), rng.random() < 0.5
        while time.monotonic() < end:
            if rng.random() >= share:
                time.sleep(0.005)
            elif multiplies:
                square @ square
            else:
                long += 1.0


def log_ratio(rows: list[Row]) -> float:
    """The logarithm of the first one's time over the second's, a process each."""
    first, second = (statistics.median(row.wall_ms) / row.batch for row in rows)
    return math.log(first / second)


def in_turns(rows: list[Row]) -> float:
    """The same of two that took turns."""
    beside = beside_others({row.config: [ms / row.batch for ms in row.wall_ms] for row in rows})
    return beside[PAIR[0]] - beside[PAIR[1]]


def one_round(nursery: Nursery, place: int) -> dict[str, Any]:
    """Both comparisons; who begins changes from round to round."""
    config = TuneConfig(**SETTINGS, seconds=SECONDS)
    budget = Budget(seconds=1e9, rung_seconds=SECONDS)
    lab = ProcessLab(config, budget, saved=lambda: None, say=lambda _: None, nursery=nursery)
    order = PAIR if place % 2 else PAIR[::-1]
    began = time.monotonic()
    alone = [lab.trial("alone", one, rung=1, attempt=0, tail=0) for one in order]
    middle = time.monotonic()
    turns = lab.turns("turns", order, rung=1, number=1)
    for row in (*alone, *turns):
        if not row.ok:
            raise SystemExit(f"{row.config}: {row.why}")
    return {
        "alone": log_ratio(sorted(alone, key=lambda row: PAIR.index(row.config))),
        "turns": in_turns(turns),
        "alone_s": middle - began,
        "turns_s": time.monotonic() - middle,
        "alone_ms": {str(row.config): row.wall_ms for row in alone},
        "turns_ms": {str(row.config): row.wall_ms for row in turns},
    }


def measure(rounds: int, nursery: Nursery, *, disturbed: bool) -> dict[str, Any]:
    others = [
        multiprocessing.get_context("spawn").Process(target=disturb, args=(seed,), daemon=True)
        for seed in range(os.cpu_count() or 1 if disturbed else 0)
    ]
    for other in others:
        other.start()
    try:
        found = [one_round(nursery, place) for place in range(rounds)]
    finally:
        for other in others:
            other.kill()
    answer: dict[str, Any] = {"disturbed": disturbed, "rounds": found}
    for kind in ("alone", "turns"):
        values = [one[kind] for one in found]
        answer |= {f"{kind}_spread": statistics.stdev(values), f"{kind}_median": statistics.median(values)}
        where, faster = "disturbed" if disturbed else "at rest", math.expm1(answer[f"{kind}_median"])
        cost = statistics.fmean(one[f"{kind}_s"] for one in found)
        told = f"{where}, {kind}: the first takes {faster:+.1%}, comparisons differ by {answer[f'{kind}_spread']:.1%}"
        print(f"{told}, {cost:.1f} s each", flush=True)
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("tune_turns.json"))
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args()
    with Nursery(COMPILERS) as nursery:
        found = [measure(given.rounds, nursery, disturbed=disturbed) for disturbed in (False, True)]
    given.out.write_text(json.dumps({"found": found, "environment": encode(capture())}, indent=1) + "\n")


if __name__ == "__main__":
    main()
