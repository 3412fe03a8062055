"""A machine of our making for the search: speeds, noise, memory with holes, compile failures, hangs, wrong answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hotlap.measure.arms import ArmSpec, parse_arm
from hotlap.tools.tune.budget import Budget
from hotlap.tools.tune.protocol import numeric_class
from hotlap.tools.tune.rows import OUT_OF_BUDGET, Config, GateRow, Row

SPEED = {"fp32": 1.0, "tf32": 1.8, "bf16": 3.0, "fp16": 2.9}


def true_rate(arm: ArmSpec, batch: int, *, overhead_ms: float = 4.0, per_sample_ms: float = 0.5) -> float:
    """Samples a second: a launch overhead that graphs and compilation cut, and a share a sample that precision cuts."""
    speed = SPEED[arm.precision] * (1.25 if arm.channels_last and arm.precision != "fp32" else 0.95**arm.channels_last)
    speed *= 1.08 if arm.cudnn_benchmark else 1.0
    speed *= 1.3 if arm.compile else 1.0
    speed /= 1.3 if arm.recompute else 1.0
    overhead = overhead_ms * (0.2 if arm.graph else 0.6 if arm.compile else 1.0) * (0.85 if arm.fused else 1.0)
    return 1e3 * batch / (overhead + batch * per_sample_ms / speed)


@dataclass
class Machine:
    """A laboratory whose every answer the test decides; rows of an earlier life can be given."""

    seed: int = 0
    noise: float = 0.01
    fits: Callable[[ArmSpec, int], bool] = lambda arm, batch: True
    rate: Callable[[ArmSpec, int], float] = true_rate
    pace: Callable[[random.Random], float] = lambda rng: 1.0
    """How much longer a whole process takes, or a turn of all that take turns: what else the machine does."""
    ends: Callable[[Config, int], str] = lambda config, rung: "ok"
    """A status other than ok for a trial that does not run."""
    budget: Budget | None = None
    """Says how long a trial lives whose end is out of budget: one that hangs."""
    wrong: Callable[[ArmSpec], bool] = lambda arm: False
    trial_s: float = 5.0
    compile_s: float = 20.0
    earlier: list[Row] = field(default_factory=list)
    """Of an earlier life: seen only once they are asked for, as the real laboratory does it."""
    earlier_gates: dict[str, GateRow] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    gates: dict[str, GateRow] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    num_run: int = 0
    dies_after: int | None = None
    """Trials after which the whole search is killed."""

    def trial(self, stage: str, config: Config, *, rung: int, attempt: int, tail: int) -> Row:
        known = [r for r in self.rows if r.is_for(config.arm, config.batch, rung, attempt, tail)]
        if known:
            return known[0]
        before = [r for r in self.earlier if r.is_for(config.arm, config.batch, rung, attempt, tail)]
        if before:
            self.rows.append(before[0])
            return before[0]
        if self.dies_after is not None and self.num_run >= self.dies_after:
            raise KeyboardInterrupt
        self.num_run += 1
        row = self._run(stage, config, rung, attempt, tail)
        self.rows.append(row)
        return row

    def _run(self, stage: str, config: Config, rung: int, attempt: int, tail: int) -> Row:
        arm = parse_arm(config.arm)
        status = self.ends(config, rung)
        status = status if self.fits(arm, config.batch) or status != "ok" else "out of memory"
        cost = (self.compile_s if arm.compile else self.trial_s) + 0.5 * 3**rung
        common = {"stage": stage, "arm": config.arm, "batch": config.batch, "rung": rung, "attempt": attempt,
                  "tail": tail, "seconds": cost}  # fmt: skip
        if status == OUT_OF_BUDGET and self.budget is not None:
            common["seconds"] = self.budget.trial_life(self, config, rung, gate_batch=4, last=bool(tail))
        if status != "ok":
            return Row(**common, status=status, why=f"{config} ended: {status}")
        rng = random.Random(f"{self.seed} {config} {rung} {attempt}")
        luck = rng.gauss(1.0, self.noise) * self.pace(rng)
        ms = 1e3 * config.batch / self.rate(arm, config.batch)
        walls = [ms * luck * rng.gauss(1.0, self.noise / 2) for _ in range(5)]
        peak = config.batch * (30 if arm.recompute else 60 if arm.precision in ("bf16", "fp16") else 100)
        return Row(**common, wall_ms=walls, interval_ms=walls * 20, peak_bytes=1000 + peak)

    def turns(self, stage: str, configs: Sequence[Config], *, rung: int, number: int) -> list[Row]:
        """Each turn at a pace of its own, which all of it share; one that cannot take part ends it for all."""
        rng = random.Random(f"{self.seed} turns {number}")
        paces = [self.pace(rng) for _ in range(30)]
        alone = [self._run(stage, config, rung, 100 + number, 0) for config in configs]
        common = {"stage": stage, "rung": rung, "together": number}
        self.num_run += 1
        for config, row in zip(configs, alone, strict=True):
            ms = 1e3 * config.batch / self.rate(parse_arm(config.arm), config.batch)
            walls = [ms * pace * rng.gauss(1.0, self.noise) for pace in paces]
            answer = {"wall_ms": walls} if all(one.ok for one in alone) else {"status": "failed", "why": "in turns"}
            self.rows.append(Row(**common, arm=config.arm, batch=config.batch, seconds=row.seconds, **answer))
        return self.rows[-len(configs) :]

    def gate(self, arms: Sequence[str]) -> None:
        for name in dict.fromkeys(numeric_class(arm) for arm in arms):
            if name in self.earlier_gates:
                self.gates[name] = self.earlier_gates[name]
            if name not in self.gates:
                red = self.wrong(parse_arm(name))
                self.gates[name] = GateRow(
                    arm=name,
                    passed=not red,
                    error=3.0 if red else 0.1,
                    check="outputs 3, allowed 1" if red else "outputs 0.1, allowed 1",
                    why="outputs 3x off" if red else "",
                    seconds=2.0,
                )

    def note(self, text: str) -> None:
        self.notes.append(text)
