"""Today's search over grids that a card has answered: what it would choose, give away and cost.

    python -m benchmarks.tune_replay --out tune_replay.json [--days 40]

No card is needed: the answers are those of results/tune_regret_h200_202611.json. A first trial is the cell's own of the
grid. A longer one is that cell with the seconds that it is timed longer, and the last run costs what the stored
search's own did. Gates are those of the stored run, or let all through. On every day but the first, rates are off by a
hundredth, and trials and gates take up to a third longer or shorter.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotlap.measure.jobs import Description
from hotlap.records.codec import decode
from hotlap.tools.tune.budget import Budget
from hotlap.tools.tune.goal import Goal
from hotlap.tools.tune.protocol import numeric_class
from hotlap.tools.tune.rows import Config, GateRow, Row
from hotlap.tools.tune.search import Search
from hotlap.tools.tune.space import make_space

STORED = Path(__file__).parents[1] / "results" / "tune_regret_h200_202611.json"
TIMED_S = 0.3
TARGETS = {"unet": (16, 60.0), "bilstm": (64, 60.0), "torchvision.models:resnet50": (16, 120.0)}
"""The workload's own batch and the search's budget."""
ALLOWED_REGRET = 0.03
ALLOWED_SHARE = 0.25


@dataclass
class Replay:
    """One search over one stored grid."""

    regret: float
    """What the winner is slower by than the grid's best right cell, by the grid's own trials."""
    share: float
    """Of the grid's measuring time that the search would take."""
    winner: Config
    best: Config
    rows: list[Row]


@dataclass
class StoredCard:
    """A laboratory that answers from the grid of one target."""

    cells: dict[Config, Row]
    last_s: float
    judged: dict[str, GateRow]
    gate_s: float
    day: int = 0
    rows: list[Row] = field(default_factory=list)
    gates: dict[str, GateRow] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def trial(self, stage: str, config: Config, *, rung: int, attempt: int, tail: int) -> Row:
        known = [row for row in self.rows if row.is_for(config.arm, config.batch, rung, attempt, tail)]
        if known:
            return known[0]
        cell = self.cells[config]
        seconds = self.last_s if tail else cell.seconds + TIMED_S * (3**rung - 1)
        changes: dict[str, Any] = {"stage": stage, "rung": rung, "attempt": attempt, "tail": tail, "seconds": seconds}
        row = dataclasses.replace(cell, **changes, tail_ms=[1.0] if tail else [])
        if self.day:
            rng = random.Random(f"{self.day} {config} {rung} {attempt} {tail}")
            luck, longer = rng.gauss(1.0, 0.01), rng.uniform(0.75, 1.33)
            row = dataclasses.replace(row, wall_ms=[ms * luck for ms in row.wall_ms], seconds=row.seconds * longer)
        self.rows.append(row)
        return row

    def turns(self, stage: str, configs: Sequence[Config], *, rung: int, number: int) -> list[Row]:
        raise NotImplementedError("configurations take turns on a CPU")

    def gate(self, arms: Sequence[str]) -> None:
        for name in map(numeric_class, arms):
            plain = GateRow(arm=name, passed=True, error=0.1, check="outputs 0.1, allowed 1", seconds=self.gate_s)
            self.gates.setdefault(name, self.judged.get(name, plain))

    def note(self, text: str) -> None:
        self.notes.append(text)

    def is_right(self, config: Config) -> bool:
        known = self.gates.get(numeric_class(config.arm)) or self.judged.get(numeric_class(config.arm))
        return known is None or known.passed


def replay(target: str, *, budget: float | None = None, refused: bool = True, day: int = 0) -> Replay:
    """The search of today over the stored grid of a target; ``refused`` leaves wrong what the stored gates refused."""
    (kept,) = [row for row in json.loads(STORED.read_text())["rows"] if row["target"] == target]
    cells = {row.config: row for row in (decode(Row, {**row, "interval_ms": []}) for row in kept["grid_rows"])}
    (last_s,) = [row["seconds"] for row in kept["tuner_rows"] if row["tail"]]
    judged = {gate["arm"]: decode(GateRow, gate) for gate in kept.get("gates", []) if gate["passed"] or refused}
    longer = random.Random(day).uniform(0.75, 1.33) if day else 1.0
    card = StoredCard(cells, last_s, judged, longer * kept["tuner_gates_s"] / 4, day)
    batch, seconds = TARGETS[target]
    about = Description(
        name=target, summary="", default_batch=batch, num_parameters=1, can_compile=True, fast_bf16=False,
        usable_cores=16, num_cuda=1, has_convolutions=any("channels_last" in arm for arm in kept["arms"]),
        has_kernels=any("kernels" in arm for arm in kept["arms"]),
    )  # fmt: skip
    space = make_space(about, mode=kept["mode"], arms=tuple(kept["arms"]), batches=tuple(kept["batches"]))
    limits = Budget(seconds=seconds if budget is None else budget, rung_seconds=TIMED_S)
    outcome = Search(space, card, Goal("throughput"), limits).run()
    assert outcome.winner is not None
    right = {config: row.samples_per_s or 0.0 for config, row in cells.items() if row.ok and card.is_right(config)}
    best = max(right, key=lambda config: right[config])
    share = sum(row.seconds for row in card.rows) / sum(row.seconds for row in cells.values())
    return Replay(1 - right[outcome.winner] / right[best], share, outcome.winner, best, card.rows)


def tell(target: str, refused: bool, found: Sequence[Replay]) -> dict[str, Any]:
    regrets, shares = [one.regret for one in found], [one.share for one in found]
    row = {
        "target": target, "gates": "as judged then" if refused else "all right", "days": len(found),
        "winner": str(found[0].winner), "best": str(found[0].best), "regret": regrets[0], "share": shares[0],
        "median_regret": statistics.median(regrets), "most_regret": max(regrets), "most_share": max(shares),
        "num_above": sum(regret > ALLOWED_REGRET for regret in regrets),
        "regrets": regrets, "shares": shares,
    }  # fmt: skip
    first = f"{row['winner']}, {row['regret']:+.1%} at {row['share']:.0%}"
    days = f"{row['median_regret']:.1%} in the median, at most {row['most_regret']:.1%} and {row['most_share']:.0%}"
    print(f"{target}, gates {row['gates']}: {first}; over {len(found)} days {days}; {row['num_above']} above 3%")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("tune_replay.json"))
    parser.add_argument("--days", type=int, default=40)
    given = parser.parse_args()
    rows = [
        tell(target, refused, [replay(target, refused=refused, day=day) for day in range(given.days)])
        for target in TARGETS
        for refused in (True, False)
    ]
    given.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
