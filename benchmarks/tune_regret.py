"""What the tuner gives away: its choice against the best of the whole grid, and the measuring time of both, in one run.

    python -m benchmarks.tune_regret --out tune_regret.json [--only unet,bilstm,resnet50] [--for train]
    python -m benchmarks.tune_regret --small      # bilstm, small, a reduced grid, on a CPU of two cores

Every cell of the grid is one trial as the tuner makes them. The best right cell and the tuner's winner are then run in
turn in fresh processes, and the regret is what the winner is slower by. It may be 3%, at a quarter of the grid's time.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from hotlap.base.stats import ratio_interval
from hotlap.measure.arms import ArmSpec, parse_arm
from hotlap.records.codec import encode
from hotlap.records.environment import capture
from hotlap.tools.tune import TuneConfig, tune
from hotlap.tools.tune.budget import Budget, spent
from hotlap.tools.tune.lab import ProcessLab
from hotlap.tools.tune.rows import Config, estimates
from hotlap.tools.tune.run import describe
from hotlap.tools.tune.search import numeric_class
from hotlap.tools.tune.space import Space, make_space

ALLOWED_REGRET = 0.03
ALLOWED_TIME = 0.25
PAIRS = 6
TARGETS: dict[str, dict[str, Any]] = {
    "unet": {"target": "unet"},
    "bilstm": {"target": "bilstm"},
    "resnet50": {"target": "torchvision.models:resnet50", "input": ("3x224x224",)},
}
SMALL = {"target": "bilstm", "workload": {"hidden": 64, "length": 32, "embedding": 32}, "max_batch": 128}


def grid_of(space: Space, batches: list[int]) -> list[Config]:
    """Every arm that the space can spell, at every batch."""
    arms: dict[ArmSpec, None] = {}
    flags = [change for change in space.switches if list(change.values()) == [True]]
    others = [change for change in space.switches if change not in flags]
    for first in space.firsts:
        for count in range(len(flags) + 1):
            for chosen in itertools.combinations(flags, count):
                merged = {key: value for change in chosen for key, value in change.items()}
                for other in [{}, *others]:
                    eager = dataclasses.replace(first, **merged, **other)
                    arms |= dict.fromkeys([eager, *space.compile_forms(eager)])
    return [Config(arm.name, batch) for batch in batches for arm in arms if space.allows(arm)]


def grid_batches(space: Space, most: int) -> list[int]:
    """Powers of two around the workload's own batch."""
    sizes, size = [], max(1, space.batch // 4)
    while size <= min(space.max_batch, most):
        sizes.append(size)
        size *= 2
    return sizes


def run_grid(config: TuneConfig, space: Space, most: int) -> tuple[Config, ProcessLab]:
    """The best cell that gives the right answer, and the laboratory with every row."""
    budget = Budget(seconds=1e9, rung_seconds=config.seconds)
    lab = ProcessLab(config, budget, saved=lambda: None, say=lambda text: print(f"  grid {text}", flush=True))
    cells = grid_of(space, grid_batches(space, most))
    print(f"{config.target}: {len(cells)} cells", flush=True)
    for cell in cells:
        lab.trial("grid", cell, rung=0, attempt=0, tail=0)
    for one in sorted(estimates(lab.rows).values(), key=lambda found: -found.rate):
        lab.gate([one.config.arm])
        if lab.gates[numeric_class(one.config.arm)].passed:
            return one.config, lab
    raise SystemExit(f"no cell of {config.target} gives the right answer")


def in_turn(config: TuneConfig, best: Config, winner: Config) -> dict[str, Any]:
    """Milliseconds a sample of both, in fresh processes that take turns, and the regret with its interval."""
    times: dict[Config, list[list[float]]] = {best: [], winner: []}
    for number in range(PAIRS):
        order = (best, winner) if number % 2 == 0 else (winner, best)
        lab = ProcessLab(
            config, Budget(seconds=1e9, rung_seconds=config.seconds), saved=lambda: None, say=lambda _: None
        )
        for cell in dict.fromkeys(order):
            row = lab.trial("again", cell, rung=1, attempt=0, tail=0)
            if not row.ok:
                raise SystemExit(f"{cell} ran in the search and not now: {row.why}")
            times[cell].append([ms / cell.batch for ms in row.wall_ms])
    if best == winner:
        return {"regret": 0.0, "low": 0.0, "high": 0.0, "best_ms": times[best], "winner_ms": times[winner]}
    ratio = ratio_interval(times[winner], times[best], paired=True)
    return {
        "regret": 1 - 1 / ratio.value,
        "low": 1 - 1 / ratio.low,
        "high": 1 - 1 / ratio.high,
        "best_ms": times[best],
        "winner_ms": times[winner],
    }


def one_target(given: dict[str, Any], mode: str, budget: str, most: int, runs: Path) -> dict[str, Any]:
    """The tuner, the grid, and both choices in turn."""
    graphs = "on" if mode == "train" else "auto"
    config = TuneConfig(**given, mode=mode, budget=budget, graphs=graphs, store=False, runs=runs, timeout_s=600.0)  # type: ignore[arg-type]
    record = tune(config, lambda event: print(f"  tune {event.text}", flush=True) if event.kind == "advance" else None)
    found = record.extra["tune"]
    winner = Config(found["winner"]["arm"], found["winner"]["batch"])
    space = make_space(describe(config), mode=mode, arms=config.arms, graphs=graphs, max_batch=config.max_batch)
    best, lab = run_grid(config, space, most)
    row = {
        "target": config.target,
        "mode": mode,
        "winner": encode(winner),
        "best": encode(best),
        "tuner_s": found["spent_s"],
        "grid_s": spent(lab.rows, lab.gates),
        "tuner_trials": len(found["rows"]),
        "grid_trials": len(lab.rows),
        "grid_rows": encode(lab.rows),
        "tuner_rows": found["rows"],
        **in_turn(config, best, winner),
    }
    row["share"] = row["tuner_s"] / row["grid_s"]
    return row


def tell(row: dict[str, Any]) -> str:
    verdict = "ok" if row["regret"] <= ALLOWED_REGRET else "REGRET TOO LARGE"
    time = "ok" if row["share"] <= ALLOWED_TIME else "TOO MUCH TIME"
    per_sample = statistics.median(ms for values in row["winner_ms"] for ms in values)
    return (
        f"{row['target']} {row['mode']}: tuner {row['winner']['arm']} at batch {row['winner']['batch']} "
        f"({per_sample:.4g} ms a sample), grid {row['best']['arm']} at batch {row['best']['batch']}; regret "
        f"{row['regret']:+.1%} [{row['low']:+.1%}, {row['high']:+.1%}] {verdict}; {row['tuner_s']:.0f} s against "
        f"{row['grid_s']:.0f} s, {row['share']:.0%} {time}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("tune_regret.json"))
    parser.add_argument("--only", default=",".join(TARGETS))
    parser.add_argument("--for", dest="mode", choices=("train", "infer"), default="train")
    parser.add_argument("--budget", default="10m")
    parser.add_argument("--most", type=int, default=512, help="the grid's largest batch")
    parser.add_argument("--arms", default="", help="only these arms, in both, as cpu,cpu:fused")
    parser.add_argument("--small", action="store_true", help="a small bilstm in a reduced grid, for two CPU cores")
    given = parser.parse_args()
    chosen = [SMALL] if given.small else [TARGETS[name] for name in given.only.split(",")]
    arms = {"arms": tuple(given.arms.split(","))} if given.arms else {}
    for name in arms.get("arms", ()):
        parse_arm(name)
    rows = []
    with tempfile.TemporaryDirectory() as runs:
        for settings in chosen:
            most = int(settings.get("max_batch", given.most))
            rows.append(one_target({**settings, **arms}, given.mode, given.budget, most, Path(runs)))
            print(tell(rows[-1]), flush=True)
            answer = {"allowed_regret": ALLOWED_REGRET, "allowed_time": ALLOWED_TIME, "rows": rows}
            given.out.write_text(json.dumps({**answer, "environment": encode(capture())}, indent=1) + "\n")


if __name__ == "__main__":
    main()
