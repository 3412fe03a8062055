"""Which arms to time, which is the baseline, and which only stand beside."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from hotlap.base.errors import UsageError
from hotlap.device.probe import require_cuda
from hotlap.measure.arms import ArmSpec, check_mode, parse_arm
from hotlap.measure.jobs import Description
from hotlap.tools.bench.config import BenchConfig

TUNED = ArmSpec(device="cpu", tuned=True)
SINGLE = ArmSpec(device="cpu", threads=1)


@dataclass(frozen=True)
class Plan:
    """The arms of a run; ``cpu:tuned`` still stands for the winner of a race to be run."""

    arms: list[ArmSpec]
    """Timed side by side in every process; the first is the baseline."""
    context: list[ArmSpec]
    """Timed once, to be shown beside."""

    @property
    def needs_race(self) -> bool:
        return TUNED in self.arms + self.context

    @property
    def crosses_devices(self) -> bool:
        return {arm.device for arm in self.arms} == {"cpu", "cuda"}


def make_plan(config: BenchConfig, about: Description) -> Plan:
    """The arms asked for, or those that answer 'how much faster is it here'."""
    names = list(config.arms) or default_arms(about, config.quick)
    arms = [parse_arm(name) for name in names]
    batch = config.batch or about.default_batch
    really = [dataclasses.replace(arm, batch=arm.batch or batch) for arm in arms]
    for arm, name, same in zip(arms, names, really, strict=True):
        if really.count(same) > 1:
            raise UsageError(f"arm {name!r} is given twice", remedy="To time A against A, use --self-test")
        check_mode(arm, config.mode)
        if arm.device == "cuda" and arm.index >= about.num_cuda:
            require_cuda(arm.index)
    plan = Plan(arms, [])
    if config.context and plan.crosses_devices:
        extra = [arm for arm in (TUNED, SINGLE) if arm not in arms]
        plan = Plan(arms, extra)
    return plan


def default_arms(about: Description, quick: bool) -> list[str]:
    """The tuned CPU against the GPU, or, without one, plain against tuned CPU settings; quickly, nothing is raced."""
    if about.num_cuda:
        return ["cpu" if quick else "cpu:tuned", "cuda"]
    if quick and about.has_convolutions:
        return ["cpu", "cpu:channels_last"]
    single = ["cpu:threads=1"] if about.usable_cores > 1 else []
    return ["cpu", *single] if quick else ["cpu", *single, "cpu:tuned"]
