"""What a search may still spend, counted in what its trials cost, so that a resumed search counts the same."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hotlap.base.errors import ConfigError
from hotlap.measure.arms import parse_arm
from hotlap.tools.tune.rows import Config, GateRow, Row

SHARES = {
    "check": 0.3, "batch": 0.35, "arms": 0.5, "switches": 0.55, "again": 0.65, "recompute": 0.65, "compile": 0.85,
    "curve": 0.9,
}  # fmt: skip
"""Of the budget that gates leave, how much may be spent when a stage begins a trial: the dear forms and the end get
their part.

A lead is checked early or not at all, see ``Search._check_lead``: what is left then belongs to what was not tried yet.
"""
WARM_UP_SHARE = 0.05
"""Of the whole budget that one trial may warm up for: where times never get steady, each takes all that it may."""
GRACE_S = 60.0
"""How long a trial that a search cannot do without may outlive the budget, and a gate say nothing."""
GRACE_TIMES = 2.0
"""What it is expected to cost so often, where that is longer: machines are busy, and a ragged tail compiles again.

The budget ends no trial before: of those in ``results/`` one in four took longer than expected, one in a hundred this.
"""
COMPILED_GATE = 0.5
"""Of a compiled trial's cost, what its gate takes, which compiles again for fewer samples: 0.3 and 0.5 were seen."""
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


class Spent(Protocol):
    rows: list[Row]
    gates: dict[str, GateRow]


def parse_budget(text: str) -> float:
    """Seconds that ``90s``, ``5m``, ``1h`` or a bare number of seconds mean."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|)\s*", text)
    if not match or float(match[1]) <= 0:
        raise ConfigError(f"budget = {text!r} is not a time", expected="a number with s, m or h, as in 90s, 5m or 1h")
    return float(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Seconds for the whole search; the last run of the winner and its gate are kept back."""

    seconds: float
    rung_seconds: float
    """Timed seconds of a trial at rung 0; three times as many with each rung."""
    first_guess_s: float = 5.0
    """What a trial costs before one was run."""
    fresh_s: float = 8.0
    """What the winner's last run costs more than a trial: it starts a fresh interpreter."""
    compiled_guess_s: float = 40.0

    def spent(self, lab: Spent) -> float:
        return spent(lab.rows, lab.gates)

    def warm_up(self, seconds: float) -> float:
        """Seconds that a trial may warm up for, of those it may at most."""
        return min(seconds, WARM_UP_SHARE * self.seconds)

    def timed(self, rung: int) -> float:
        return float(self.rung_seconds * 3**rung)

    def cost(self, rows: Sequence[Row], config: Config, rung: int) -> float:
        """What one more trial is expected to take: as much as the dearest of its kind lately, and its timing."""
        kind = _kind(config.arm)
        same = [row.seconds - self.timed(row.rung) for row in rows if row.ok and _kind(row.arm) == kind][-4:]
        guess = self.compiled_guess_s if kind else self.first_guess_s
        return max(same, default=guess) + self.timed(rung)

    def affords(self, lab: Spent, config: Config, rung: int, stage: str, times: int = 1) -> bool:
        """Whether trials fit into their stage's share, and with the winner's last run kept back; the first always."""
        return not lab.rows or self.enough(lab, config, rung, stage, times) <= self.seconds

    def enough(self, lab: Spent, config: Config, rung: int, stage: str, times: int = 1) -> float:
        """Seconds that the whole budget must have for that."""
        spent = self.spent(lab)
        if stage == "confirm":  # it is a last run itself
            return spent + self._last(lab, config)
        cost = times * self.cost(lab.rows, config, rung)
        judged = sum(gate.seconds for gate in lab.gates.values())
        return max((spent - judged) / _share(lab, stage) + judged, spent + cost + self._end(lab, config))

    def _last(self, lab: Spent, config: Config) -> float:
        """Seconds that a winner's last run is expected to take."""
        return self.cost(lab.rows, config, 1) + self.fresh_s

    def _end(self, lab: Spent, config: Config) -> float:
        """Seconds that are kept back for a winner: its last run and a gate."""
        gates = [gate.seconds for gate in lab.gates.values()]
        compiled = COMPILED_GATE * self.cost(lab.rows, config, 0) if _kind(config.arm) else 0.0
        return self._last(lab, config) + max([compiled, *gates])

    def trial_life(self, lab: Spent, config: Config, rung: int, *, gate_batch: int, last: bool) -> float:
        """Seconds after which a trial is ended for the budget's sake; the first that runs and the last get a grace."""
        left = max(0.0, self.seconds - self.spent(lab))
        known = [row.seconds for row in lab.rows if row.ok and row.config == config]
        expected = max([self.cost(lab.rows, config, rung), *known])
        if last:
            return left + _grace(expected + self.fresh_s)
        if not any(row.ok for row in lab.rows):  # what is known then is how long the gate took for a few samples
            judged = sum(gate.seconds for gate in lab.gates.values()) * config.batch / gate_batch
            return left + _grace(max(expected, judged))
        return self.life(lab, expected)

    def life(self, lab: Spent, expected: float) -> float:
        """Seconds after which what a search can do without is ended, so that its end has what is kept back for it.

        What has to be ended will not win, so that is what the dearest of those that ran needs. Stages' shares do not
        count: they say when a trial may begin, and one that begins last may be longer than what is left of its share.
        """
        kept = max((self._end(lab, row.config) for row in lab.rows if row.ok), default=0.0)
        return max(self.seconds - self.spent(lab) - kept, GRACE_TIMES * expected)

    def gate_silence(self, lab: Spent, arms: Sequence[str], since: float) -> float:
        """Seconds without a word after which the judgement of some arms is ended, begun ``since`` seconds ago.

        It is never ended while it gets on: without it nothing can be chosen.
        """
        left = self.seconds - self.spent(lab) - since
        return max(left, _grace(max(self.cost(lab.rows, Config(arm, 1), 0) for arm in arms)))


def _share(lab: Spent, stage: str) -> float:
    """Of the whole budget; batch and number format are looked at again for the leader, after the stages before it."""
    before = {"batch": ("arms", "switches"), "arms": ("switches",)}.get(stage, ())
    again = any(row.stage in before for row in lab.rows)
    return SHARES["again" if again else stage] if stage in SHARES else 1.0


def _grace(expected_s: float) -> float:
    return max(GRACE_S, GRACE_TIMES * expected_s)


def spent(rows: Sequence[Row], gates: Mapping[str, GateRow]) -> float:
    """What rows and gates have cost together."""
    return sum(row.seconds for row in rows) + sum(gate.seconds for gate in gates.values())


def _kind(arm: str) -> bool:
    return bool(parse_arm(arm).compile)
