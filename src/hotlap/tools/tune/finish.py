"""The end of a search: a contest of the best, their judgement, and a last run in the final form of whoever wins."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hotlap.tools.tune.contest import (
    LONG_RUNG,
    MARGIN,
    NUM_LEADERS,
    contest_end,
    fell,
    in_doubt,
    noise_of,
    who_meets,
    with_fewest,
)
from hotlap.tools.tune.field import Field
from hotlap.tools.tune.rows import MEMORY_DEATHS, Config, Estimate, Outcome, Row, estimates

NUM_CONFIRMED = 4
"""Configurations whose final form is run before the search gives up."""
TOLERATED = 0.02
"""What a winner may fall behind another by in its last run, without a last run of that one."""


class Finish:
    """The end of one search, among those of a field; ``num_cells`` is the size of a listed grid, 0 for none."""

    def __init__(self, field: Field, num_cells: int) -> None:
        self.field, self.num_cells = field, num_cells
        self.lab, self.goal, self.budget = field.lab, field.goal, field.budget

    def run(self) -> Outcome:
        """Times the best again, judges them, and runs the first right one in its final form, and what overtakes it."""
        self._contest()
        confirmed: dict[Config, Row] = {}
        failed: set[Config] = set()
        while len(confirmed) + len(failed) < NUM_CONFIRMED:
            able = [e for e in self.field.ranked() if e.config not in failed and self._may_win(e, confirmed)]
            best = next((one for one in able if self.field.judged(one)), None)
            if best is None or best.config in confirmed:
                break
            row = self._confirm(best.config)
            if row.ok and best.num_rounds and self._fell(best, {best.config: row}):
                self.lab.trial("confirm", best.config, rung=0, attempt=1, tail=0)  # the machine may have slowed down
            if row.ok and self.goal.admits(estimates(self.lab.rows)[best.config]):
                confirmed[best.config] = row
                continue
            failed.add(best.config)
            self.field.refused[str(best.config)] = row.why or f"{self.goal.says()} does not hold in its final form"
        ended = [one for one in self.field.ranked() if one.config in confirmed]
        proven = {one.config: self._proven(one, confirmed) if self.goal.by_rate else 0.0 for one in ended}
        ended.sort(key=lambda one: -proven[one.config] if self._fell(one, confirmed) else -math.inf)
        winner = ended[0].config if ended else None
        return self._outcome(winner, confirmed[winner] if winner else None)

    def _contest(self) -> None:
        """Runs the best few again, in turn, until it is decided or has cost its share."""
        end = contest_end(self.lab, self.budget, self.num_cells)
        while doubtful := in_doubt(self._contenders(), noise_of(self.lab.rows)):
            if self.field.takes_turns([one.config for one in doubtful]):
                if not self._meet_again(doubtful, end):
                    return
                continue
            for config in with_fewest(doubtful, noise_of(self.lab.rows)):
                cost = self.budget.cost(self.lab.rows, config, LONG_RUNG)
                if self.budget.spent(self.lab) + cost > end or not self.field.again("final", config):
                    return

    def _meet_again(self, doubtful: Sequence[Estimate], end: float) -> bool:
        """Lets as many of these as there is time for take turns; says whether the contest may go on."""
        cost = self.budget.cost(self.lab.rows, doubtful[0].config, LONG_RUNG)
        few = who_meets(doubtful, noise_of(self.lab.rows), int((end - self.budget.spent(self.lab)) / cost))
        if len(few) < 2 or not self.budget.affords(self.lab, few[0], LONG_RUNG, "final", times=len(few)):
            return False
        self.field.meet("final", few, LONG_RUNG)
        return True

    def _may_win(self, one: Estimate, confirmed: Mapping[Config, Row]) -> bool:
        """Whether one had its last run and stands, or is worth one: the first, and what a last run fell behind."""
        known = estimates(self.lab.rows)
        rates = [self._proven(known[config], confirmed) for config in confirmed]
        if not rates or one.config in confirmed:
            return not rates or not self._fell(one, confirmed)
        # Otherwise the first stands, unless its last run belied the others.
        by_rate = self.goal.objective == "throughput"
        fallen = all(self._fell(known[config], confirmed) for config in confirmed)
        is_worth = one.rate > (1 + TOLERATED) * max(rates) if by_rate else fallen
        return is_worth and self.budget.affords(self.lab, one.config, LONG_RUNG, "confirm")

    def _fell(self, one: Estimate, confirmed: Mapping[Config, Row]) -> bool:
        return fell(one, confirmed[one.config], self.lab.rows)

    def _proven(self, one: Estimate, confirmed: Mapping[Config, Row]) -> float:
        """The rate of one that had its last run: the median of its processes, or that run's where it fell."""
        return confirmed[one.config].samples_per_s or 0.0 if self._fell(one, confirmed) else one.rate

    def _contenders(self) -> list[Estimate]:
        """The best and those whom noise may have put behind it; wrong ones make room for others."""
        found: list[Estimate] = []
        noise = noise_of(self.lab.rows)
        margin = MARGIN if noise.turns is None else noise.margin
        for one in self.field.ranked():
            if len(found) == NUM_LEADERS or (found and one.rate < (1 - margin) * found[0].rate):
                break
            found += [one] if self.field.judged(one) else []
        return found

    def _confirm(self, config: Config) -> Row:
        tail = max(1, config.batch * 2 // 3) if config.batch > 1 else 1
        row = self.lab.trial("confirm", config, rung=LONG_RUNG, attempt=0, tail=tail)
        if row.status in MEMORY_DEATHS:
            row = self.lab.trial("confirm", config, rung=LONG_RUNG, attempt=1, tail=tail)
        return row

    def _outcome(self, winner: Config | None, confirmed: Row | None) -> Outcome:
        known = estimates(self.lab.rows)
        ranking = sorted(known.values(), key=lambda one: (one.config != winner, -one.rate))
        return Outcome(winner, confirmed, ranking, dict(self.field.refused))
