"""What trials of several batch sizes say of the next one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from hotlap.measure.arms import ArmSpec
from hotlap.tools.tune.rows import MEMORY_DEATHS, Row, estimates

FALL = 0.85
"""Of the best rate; a batch below it ends the climb at once."""
RECOMPUTE_PAYS = 1.33
"""What the last doubling of the batch must have brought for activation checkpointing, a third of a step, to pay."""
RIVAL = 0.8
"""Of the leading number format's rate: one that has so much is tried again where the leader came to another batch."""


def rates_of(rows: Sequence[Row], arm: ArmSpec) -> dict[int, float]:
    """An arm's samples a second by batch."""
    return {config.batch: one.rate for config, one in estimates(rows).items() if config.arm == arm.name}


def may_gain(eager: Mapping[int, float], size: int, other: int) -> bool:
    """Whether another size is worth a trial of a compiled or recorded form, by what it did to the arm that climbed.

    Such forms cost fewer launches, so that larger sizes gain less and smaller ones lose less than they did.
    """
    if size not in eager or other not in eager:
        return True
    return eager[other] > (1.0 if other > size else FALL**2) * eager[size]


def memory_stopped(rows: Sequence[Row], leader: ArmSpec, climbed: ArmSpec) -> bool:
    """Whether the leader had no memory for more, while the arm that climbed still gained by its last doubling."""
    sizes, rates = rates_of(rows, leader), rates_of(rows, climbed)
    if not sizes or not rates:
        return False
    dead = {row.batch for row in rows if row.arm == leader.name and row.status in MEMORY_DEATHS}
    largest = max(rates)
    half = max((size for size in rates if 2 * size <= largest), default=largest)
    return max(dead, default=0) > max(sizes) and rates[largest] > RECOMPUTE_PAYS * rates[half]


def rival_of(rows: Sequence[Row], leader: ArmSpec, arms: Sequence[ArmSpec], raced_at: int) -> ArmSpec | None:
    """The leader in the next best number format of the arms that were raced at one batch; None if that is far behind.

    At another batch it may lead: a short format gains more from a larger one.
    """
    rates = {arm: rates_of(rows, arm).get(raced_at, 0.0) for arm in arms}
    of_leader = max((rate for arm, rate in rates.items() if arm.precision == leader.precision), default=0.0)
    others = {arm: rate for arm, rate in rates.items() if arm.precision != leader.precision and rate}
    best = max(others, key=others.__getitem__, default=None)
    if best is None or others[best] < RIVAL * of_leader:
        return None
    return dataclasses.replace(leader, precision=best.precision)
