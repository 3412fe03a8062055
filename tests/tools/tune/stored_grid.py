"""A card as it answered once: whole grids of cells stored in results/, which a search of today may ask again.

A first trial is the cell's own of the grid. A longer one is that cell with the seconds that it is timed longer, and the
last run costs what the stored search's own did. Gates are those of the stored run. On another ``day`` rates are off by
one hundredth, and trials and gates take up to a third longer or shorter.
"""

from __future__ import annotations

import dataclasses
import json
import random
from dataclasses import dataclass, field
from pathlib import Path

from random_machines import Contest

from hotlap.records.codec import decode
from hotlap.tools.tune.budget import Budget
from hotlap.tools.tune.goal import Goal
from hotlap.tools.tune.protocol import numeric_class
from hotlap.tools.tune.rows import Config, GateRow, Row
from hotlap.tools.tune.search import Search
from hotlap.tools.tune.space import make_space

STORED = Path(__file__).parents[3] / "results" / "tune_regret_h200_202611.json"
TIMED_S = 0.3


@dataclass
class StoredCard:
    """A laboratory that answers from the grid of one target; what the grid has no cell for fails."""

    cells: dict[Config, Row]
    last_s: float
    judged: dict[str, GateRow]
    gate_s: float
    day: int = 0
    rows: list[Row] = field(default_factory=list)
    gates: dict[str, GateRow] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def trial(self, stage, config, *, rung, attempt, tail):
        known = [row for row in self.rows if row.is_for(config.arm, config.batch, rung, attempt, tail)]
        if known:
            return known[0]
        cell = self.cells[config]
        seconds = self.last_s if tail else cell.seconds + TIMED_S * (3**rung - 1)
        changes = {"stage": stage, "rung": rung, "attempt": attempt, "tail": tail, "seconds": seconds}
        row = dataclasses.replace(cell, **changes, tail_ms=[1.0] if tail else [])
        if self.day:
            rng = random.Random(f"{self.day} {config} {rung} {attempt} {tail}")
            luck, longer = rng.gauss(1.0, 0.01), rng.uniform(0.75, 1.33)
            row = dataclasses.replace(row, wall_ms=[ms * luck for ms in row.wall_ms], seconds=row.seconds * longer)
        self.rows.append(row)
        return row

    def gate(self, arms):
        for name in map(numeric_class, arms):
            plain = GateRow(arm=name, passed=True, error=0.1, check="outputs 0.1, allowed 1", seconds=self.gate_s)
            self.gates.setdefault(name, self.judged.get(name, plain))

    def note(self, text):
        self.notes.append(text)


def stored_contest(target, about, *, budget, refused=True, day=0):
    """The search of today over the stored grid of a target; ``refused`` leaves wrong what the stored gates refused."""
    (kept,) = [row for row in json.loads(STORED.read_text())["rows"] if row["target"] == target]
    cells = {row.config: row for row in (decode(Row, {**row, "interval_ms": []}) for row in kept["grid_rows"])}
    (last_s,) = [row["seconds"] for row in kept["tuner_rows"] if row["tail"]]
    gates = {gate["arm"]: decode(GateRow, gate) for gate in kept.get("gates", [])}
    judged = {name: gate for name, gate in gates.items() if gate.passed or refused}
    gate_s = kept["tuner_gates_s"] / 4 * (random.Random(day).uniform(0.75, 1.33) if day else 1.0)
    card = StoredCard(cells, last_s, judged, gate_s, day)
    about = dataclasses.replace(
        about,
        has_convolutions=any("channels_last" in arm for arm in kept["arms"]),
        has_kernels=any("kernels" in arm for arm in kept["arms"]),
    )
    space = make_space(about, mode=kept["mode"], arms=tuple(kept["arms"]), batches=tuple(kept["batches"]))
    outcome = Search(space, card, Goal("throughput"), Budget(seconds=budget, rung_seconds=TIMED_S)).run()
    right = {config: row.samples_per_s for config, row in cells.items() if row.ok and is_right(card, config)}
    best = max(right, key=lambda config: right[config])
    regret = 1 - right[outcome.winner] / right[best]
    share = sum(row.seconds for row in card.rows) / sum(row.seconds for row in cells.values())
    return Contest(regret, share, outcome.winner, best, card.rows)


def is_right(card, config):
    known = card.gates.get(numeric_class(config.arm)) or card.judged.get(numeric_class(config.arm))
    return known is None or known.passed
