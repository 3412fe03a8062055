"""What is known of those that ran, best first, and what runs some of them again: alone, or in turns."""

from __future__ import annotations

from collections.abc import Container, Sequence

from hotlap.measure.arms import parse_arm
from hotlap.tools.tune.budget import Budget
from hotlap.tools.tune.contest import (
    CLOSE,
    FAR,
    LONG_RUNG,
    MARGIN,
    NUM_LEADERS,
    can_take_turns,
    have_met,
    leads,
    noise_of,
)
from hotlap.tools.tune.goal import Goal
from hotlap.tools.tune.protocol import Lab, numeric_class
from hotlap.tools.tune.rows import Config, Estimate, estimates

MAX_CHECKS = 3
"""Processes that may be spent on one lead."""


class Field:
    """The configurations of one search."""

    def __init__(self, lab: Lab, goal: Goal, budget: Budget) -> None:
        self.lab, self.goal, self.budget = lab, goal, budget
        self.refused: dict[str, str] = {}
        """Arms and configurations that were refused, with the reason."""

    def ranked(self) -> list[Estimate]:
        """What ran, best first; without what is known to answer wrongly, which must not set the mark for others."""
        wrong = {name for name, gate in self.lab.gates.items() if not gate.passed}
        known = estimates(self.lab.rows)
        return self.goal.order(one for config, one in known.items() if numeric_class(config.arm) not in wrong)

    def is_right(self, arm: str) -> bool:
        found = self.lab.gates.get(numeric_class(arm))
        if found is None or not found.passed:
            self.refused[arm] = found.why if found else "not judged"
            return False
        return True

    def judged(self, one: Estimate) -> bool:
        """Whether a configuration's arm gives the right answer; judged when it is asked for the first time."""
        if numeric_class(one.config.arm) not in self.lab.gates:
            # One process judges several: the float64 reference is the dear part.
            near = [e.config.arm for e in self.ranked() if e.may_beat(one, CLOSE)]
            self.lab.gate(list(dict.fromkeys([one.config.arm, *near]))[: NUM_LEADERS + 1])
        return self.is_right(one.config.arm)

    def again(self, stage: str, config: Config) -> bool:
        """Runs a configuration in one more process, longer than at first; says whether the budget allowed it."""
        if not self.budget.affords(self.lab, config, LONG_RUNG, stage):
            return False
        again = [row for row in self.lab.rows if row.rung == LONG_RUNG and not (row.tail or row.together)]
        ran = sum(row.config == config for row in again)
        return self.lab.trial(stage, config, rung=LONG_RUNG, attempt=ran, tail=0).ok

    def check_lead(self, stage: str, configs: Container[Config]) -> None:
        """Runs the best of some configurations again until it leads with two processes: luck does not repeat.

        Where the two differ by much, a third decides between them; where they can, the best and those near take turns.
        What must be compiled first is left to the end.
        """
        for _ in range(MAX_CHECKS):
            ranked = [one for one in self.ranked() if one.config in configs]
            if len(ranked) < 2 or parse_arm(ranked[0].config.arm).compile:
                return
            if self.takes_turns([one.config for one in ranked[:2]]):
                if not self._meet_near(stage, ranked):
                    return
                continue
            is_checked = ranked[0].num_processes > (2 if ranked[0].spread > MARGIN / 2 else 1)
            if is_checked or leads(ranked, noise_of(self.lab.rows, least=1)):
                return
            config = ranked[0].config
            if not self.budget.affords(self.lab, config, LONG_RUNG, "check") or not self.again(stage, config):
                return

    def _meet_near(self, stage: str, ranked: Sequence[Estimate]) -> bool:
        """Lets the best take turns with those that may be as good, if it has not met the next; says whether it did."""
        near = [one.config for one in ranked[:NUM_LEADERS] if one.rate >= (1 - FAR) * ranked[0].rate]
        near = [config for config in near if can_take_turns([near[0], config])]
        if len(near) < 2 or have_met(near[0], near[1], self.lab.rows):
            return False
        is_paid = self.budget.affords(self.lab, near[0], 0, "check", times=len(near))
        return is_paid and self.meet(stage, near, 0)

    def takes_turns(self, configs: Sequence[Config]) -> bool:
        """Whether these can take turns in one process, and none that tried has failed."""
        return can_take_turns(configs) and all(row.ok for row in self.lab.rows if row.together)

    def meet(self, stage: str, configs: Sequence[Config], rung: int) -> bool:
        """Lets configurations take turns in one process; says whether they did."""
        number = 1 + max((row.together for row in self.lab.rows), default=0)
        return all(row.ok for row in self.lab.turns(stage, configs, rung=rung, number=number))
