"""The search itself, without clocks or processes: it asks a laboratory for trials and gates and decides what is next.

Its decisions follow from the answers alone, so a search that is run again over the rows of one that was cut off comes
to the same point without a new trial, and goes on from there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from hotlap.measure.arms import ArmSpec, parse_arm
from hotlap.tools.tune.budget import Budget
from hotlap.tools.tune.contest import CLOSE, MARGIN, finalists
from hotlap.tools.tune.field import Field
from hotlap.tools.tune.finish import Finish
from hotlap.tools.tune.goal import Goal
from hotlap.tools.tune.protocol import Lab, is_compiled
from hotlap.tools.tune.rows import MEMORY_DEATHS, Config, Estimate, Outcome, estimates
from hotlap.tools.tune.sizes import FALL, may_gain, memory_stopped, rates_of, rival_of
from hotlap.tools.tune.space import Space

GAIN = 0.02
"""Less than this from a doubled batch is none; after two such the climb ends."""
NUM_LAYOUTS = 2
"""Precisions that are tried in the other memory format, too."""


class Search:
    """One search under way."""

    def __init__(self, space: Space, lab: Lab, goal: Goal, budget: Budget) -> None:
        self.space, self.lab, self.goal, self.budget = space, lab, goal, budget
        self.field = Field(lab, goal, budget)
        self._told: set[str] = set()

    def run(self) -> Outcome:
        """The fastest configuration that was run and gives the right answer, or none."""
        batch, arms = self._scout(self._right(list(self.space.firsts)))
        if arms:
            # The batch first: at a small one the launches decide, and all arms look alike.
            batch = self._best_batch(arms[0], batch)
            raced, raced_at = self._recorded(arms, batch), batch
            leader = self._turn(self._switch(self._lead(raced, batch), batch), batch)
            if leader != arms[0]:
                batch = self._follow(leader, arms[0], batch)
                rival = rival_of(self.lab.rows, leader, raced, raced_at) if batch != raced_at else None
                if rival is not None and self.space.allows(rival):
                    leader = self._race("arms", [leader, rival], batch)
            self._recompute(leader, arms[0], batch)
            self._compile(leader, arms[0], batch)
            quick = [one.config.arm for one in self.field.ranked() if not parse_arm(one.config.arm).compile]
            if self.space.from_one and quick:
                self._try("curve", Config(quick[0], self.space.smallest))
        return Finish(self.field, self.space.num_cells).run()

    def _right(self, arms: list[ArmSpec]) -> list[ArmSpec]:
        """The arms whose precision gives the right answer; judged once for each, before any time is spent on them."""
        plain = {arm.precision: ArmSpec(device=arm.device, index=arm.index, precision=arm.precision) for arm in arms}
        self.lab.gate([spec.name for spec in plain.values()])
        return [arm for arm in arms if self.field.is_right(plain[arm.precision].name)]

    def _scout(self, arms: list[ArmSpec]) -> tuple[int, list[ArmSpec]]:
        """The batch at which something runs, and the arms to go on with, the one to climb with first.

        The plainest and the leanest are tried; where neither fits, half the batch; in the end, recomputation.
        """
        batch = self.space.batch
        while arms:
            scouts = list(dict.fromkeys([arms[0], arms[-1]]))
            ran = [arm for arm in scouts if self._try("scout", Config(arm.name, batch))]
            if ran:
                faster = self._kept(max(ran, key=lambda arm: self._rate(arm, batch)), arms, batch)
                return batch, list(dict.fromkeys([faster, *arms]))
            less = self.space.smaller(batch)
            if self.space.fixed or less is None or not self._died_of_memory(scouts, batch):
                break
            batch = less
        batch = self.space.batch if self.space.fixed else self.space.smallest
        lean = [form for arm in reversed(arms) for form in self.space.recomputed(arm)]
        for place, arm in enumerate(lean):
            if self._try("recompute", Config(arm.name, batch)):
                return batch, [arm, *lean[:place], *lean[place + 1 :]]
        others = [arm for arm in arms[1:-1] if self._try("scout", Config(arm.name, batch))]
        return batch, others

    def _kept(self, arm: ArmSpec, arms: Sequence[ArmSpec], batch: int) -> ArmSpec:
        """The arm, or itself with memory that is kept: sizes that fresh pages have ranked are those of luck."""
        steady = dataclasses.replace(arm, keep_memory=True)
        return steady if steady in arms and self._try("scout", Config(steady.name, batch)) else arm

    def _died_of_memory(self, arms: Sequence[ArmSpec], batch: int) -> bool:
        configs = {Config(arm.name, batch) for arm in arms}
        return any(row.status in MEMORY_DEATHS for row in self.lab.rows if row.config in configs)

    def _try(self, stage: str, config: Config, rung: int = 0) -> Estimate | None:
        """What is known of a configuration after one more trial at ``rung``; a death for memory is tried once more."""
        for attempt in range(2):
            if not self._affords(stage, config, rung):
                break
            row = self.lab.trial(stage, config, rung=rung, attempt=attempt, tail=0)
            if row.status not in MEMORY_DEATHS:
                break
        return estimates(self.lab.rows).get(config)

    def _affords(self, stage: str, config: Config, rung: int) -> bool:
        if any(r.config == config and r.rung == rung and not (r.tail or r.together) for r in self.lab.rows):
            return True  # costs nothing, or is the second attempt of one that was paid for
        if self.budget.affords(self.lab, config, rung, stage):
            return True
        if stage not in self._told:
            self._told.add(stage)
            needs = f"which needs one of {math.ceil(self.budget.enough(self.lab, config, rung, stage))} s"
            left_out = f"{stage}: {config}, {needs}, and for what would have followed in that stage"
            self.lab.note(f"the budget of {self.budget.seconds:g} s left no time for {left_out}")
        return False

    def _recorded(self, arms: list[ArmSpec], batch: int) -> list[ArmSpec]:
        """The arms as recorded steps, where those may be tried and launches decide: eagerly all would look alike."""
        forms = [arm for arm in self.space.compile_forms(arms[0]) if arm.graph and not arm.compile]
        if not forms or not self._try("arms", Config(forms[0].name, batch)):
            return arms
        if self._rate(forms[0], batch) < (1 + MARGIN) * self._rate(arms[0], batch):
            return arms
        changed = [dataclasses.replace(arm, graph=True) for arm in arms]
        return [arm for arm in changed if self.space.allows(arm)]

    def _lead(self, arms: Sequence[ArmSpec], batch: int) -> ArmSpec:
        """The best arm at one batch: precisions in the first one's layout, then the other layout for the best of them.

        Plain float32 is not raced where TF32 gives the right answer: it runs the same kernels or slower ones.
        """
        first = arms[0]
        tf32 = any(arm.precision == "tf32" for arm in arms)
        raced = [arm for arm in arms if arm == first or not (tf32 and arm.precision == "fp32")]
        same = [arm for arm in raced if arm.channels_last == first.channels_last]
        best = self._race("arms", same, batch)
        ranked = sorted(same, key=lambda arm: -self._rate(arm, batch))[:NUM_LAYOUTS]
        kinds = {arm.precision for arm in ranked if self._rate(arm, batch) >= (1 - MARGIN) * self._rate(best, batch)}
        others = [arm for arm in raced if arm not in same and arm.precision in kinds]
        return self._race("arms", [best, *others], batch) if others else best

    def _race(self, stage: str, arms: Sequence[ArmSpec], batch: int) -> ArmSpec:
        """The best arm at one batch, which must have led in two processes; the first where none ran."""
        configs = [Config(arm.name, batch) for arm in arms]
        for config in configs:
            self._try(stage, config)
        self.field.check_lead(stage, configs)
        return max(arms, key=lambda arm: self._rate(arm, batch))

    def _switch(self, leader: ArmSpec, batch: int) -> ArmSpec:
        """The leader, with those switches turned that make it faster here: each alone, then those that did together."""
        best = self._race("switches", [leader, *self.space.switched(leader)], batch)
        rate = self._rate(leader, batch)
        gains = [c for c in self.space.switches if self._rate(dataclasses.replace(leader, **c), batch) > rate]
        together = self.space.together(leader, gains)
        return self._race("switches", [best, together], batch) if together else best

    def _turn(self, leader: ArmSpec, batch: int) -> ArmSpec:
        """The leader, or itself in the other memory format where it has kernels of ours: those may suit another one."""
        other = dataclasses.replace(leader, channels_last=not leader.channels_last)
        known = any(arm.channels_last != leader.channels_last for arm in self.space.firsts)
        if not leader.kernels or not known or not self.space.allows(other):
            return leader
        return self._race("switches", [leader, other], batch)

    def _follow(self, leader: ArmSpec, climbed: ArmSpec, batch: int) -> int:
        """The best size for the leader, near that of the arm that climbed.

        A faster arm spends more of its time on launches, so its best size is no smaller; a smaller one is tried only
        where the other arm gained little from the last doubling.
        """
        if self.space.fixed:
            return batch
        self._climb(leader, batch)
        rates, less = self._rates(climbed), self.space.smaller(batch)
        size = batch
        while less in rates and rates[less] >= (1 - MARGIN) * rates.get(size, 0.0):
            found = self._try("batch", Config(leader.name, less))
            if found is None or found.rate < self._rate(leader, size):
                break
            size, less = less, self.space.smaller(less)
        if self.goal.objective != "throughput" or self.goal.p95_ms is not None:
            return self._best_batch(leader, batch)
        best = self._best_size(leader)
        return batch if best is None else best

    def _best_batch(self, arm: ArmSpec, start: int) -> int:
        """The best size for an arm: doubled and halved from ``start``, then the neighbours that doubling leaves out."""
        if self.space.fixed:
            return start
        self._climb(arm, start)
        if not self._gained(arm, start):
            self._descend(arm, start)
        best = self._best_size(arm)
        if best is not None and self.goal.objective == "throughput":
            for size in self.space.around(best):
                self._try("batch", Config(arm.name, size))
            self.field.check_lead("batch", {Config(arm.name, size) for size in self._rates(arm)})
        found = self._best_size(arm)
        return start if found is None else found

    def _gained(self, arm: ArmSpec, start: int) -> bool:
        """Whether larger sizes are so much faster that no smaller one need be tried: for the rate alone, that is."""
        rates = self._rates(arm)
        only_rate = self.goal.objective == "throughput" and self.goal.p95_ms is None
        return only_rate and max(rates.values(), default=0.0) > (1 + MARGIN) * rates.get(start, 0.0)

    def _best_size(self, arm: ArmSpec) -> int | None:
        mine = [one for config, one in estimates(self.lab.rows).items() if config.arm == arm.name]
        ranked = self.goal.order(mine) or sorted(mine, key=lambda one: one.p95_ms)
        return ranked[0].config.batch if ranked else None

    def _climb(self, arm: ArmSpec, start: int) -> None:
        good, size, flat, failures = start, start, 0, 0
        best = self._rate(arm, start)
        while flat < 2 and (more := self.space.larger(size)) is not None:
            size = more
            found = self._try("batch", Config(arm.name, size))
            if found is None:
                failures += 1
                self._fill_gap(arm, good, size)
                # Memory is not monotone: one size beyond a failure is tried before the climb ends.
                if failures > 1 or not self._died_of_memory([arm], size):
                    return
                continue
            flat = 0 if found.rate > (1 + GAIN) * best else flat + 1
            if found.rate < FALL * best or not self._worth_larger(found):
                return
            good, best = size, max(best, found.rate)

    def _worth_larger(self, found: Estimate) -> bool:
        """Whether a larger batch may still serve the goal: beyond the latency allowed none does."""
        return self.goal.admits(found) and not (self.goal.objective == "latency" and self.goal.p95_ms is None)

    def _fill_gap(self, arm: ArmSpec, good: int, bad: int) -> None:
        for size in self.space.between(good, bad):
            self._try("batch", Config(arm.name, size))

    def _descend(self, arm: ArmSpec, start: int) -> None:
        """Smaller sizes, as long as they serve the goal: fast enough, within the latency, or lean."""
        size, flat = start, 0
        while flat < 2 and (less := self.space.smaller(size)) is not None:
            size = less
            found = self._try("batch", Config(arm.name, size))
            if found is None:
                return
            best = max(self._rates(arm).values())
            if self.goal.objective == "latency" or self.goal.p95_ms is not None:
                flat = flat + 1 if self.goal.p95_ms is not None and self.goal.admits(found) else 0
            elif self.goal.objective == "memory":
                flat = 0 if found.rate >= 0.95 * best else 2
            else:
                flat = 0 if found.rate >= best else flat + (2 if found.rate < FALL * best else 1)

    def _rates(self, arm: ArmSpec) -> dict[int, float]:
        return rates_of(self.lab.rows, arm)

    def _rate(self, arm: ArmSpec, batch: int) -> float:
        return self._rates(arm).get(batch, 0.0)

    def _recompute(self, leader: ArmSpec, climbed: ArmSpec, batch: int) -> None:
        """Activation checkpointing, only where memory is what counts: at one batch it is slower than without.

        Memory counts where it is the objective, and where it ended the climb while larger batches still paid.
        """
        if self.goal.objective == "memory":
            for form in self.space.recomputed(leader):
                if self._try("recompute", Config(form.name, batch)) and not self.space.fixed:
                    self._climb(form, batch)
        elif (
            self.goal.objective == "throughput"
            and not self.space.fixed
            and memory_stopped(self.lab.rows, leader, climbed)
        ):
            largest = max(self._rates(leader))
            for form in self.space.recomputed(leader):
                more = self.space.larger(largest)
                if more is not None and self._try("recompute", Config(form.name, more)):
                    self._climb(form, more)

    def _compile(self, leader: ArmSpec, climbed: ArmSpec, batch: int) -> None:
        """Finalists compiled and recorded at their batch, the best of them also at other sizes, while that pays."""
        first, *others = finalists(estimates(self.lab.rows), leader, batch) or [
            dataclasses.replace(leader, graph=False)
        ]
        ran = [f for f in self.space.compile_forms(first) if self._try("compile", Config(f.name, batch))]
        if ran:
            form = max(ran, key=lambda arm: self._rate(arm, batch))
            gains = self._rate(form, batch) > self._rate(leader, batch)
            for arm in others if gains else ():  # one form each: compiling is dear, and what suits one suits the next
                same = dataclasses.replace(arm, compile=form.compile, graph=form.graph)
                if self.space.allows(same):
                    self._try("compile", Config(same.name, batch))
        known = estimates(self.lab.rows)
        forms = [c for c in known if c.batch == batch and is_compiled(c.arm)]
        if not forms or self.space.fixed:
            return
        best = max(forms, key=lambda c: known[c].rate)
        if known[best].rate < (1 - CLOSE) * max(one.rate for one in known.values()):
            return
        for step in (self.space.larger, self.space.smaller):
            size, rate = batch, known[best].rate
            while (next_size := step(size)) is not None and may_gain(self._rates(climbed), size, next_size):
                size = next_size
                found = self._try("compile", Config(best.arm, size))
                if found is None or found.rate < (1 + GAIN) * rate:
                    break
                rate = found.rate
