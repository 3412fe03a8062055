"""What a process says in which several configurations took turns: the machine's pace is common to them and falls out.

A machine that others share, or that grows warm, may be half as fast for seconds. Processes that are timed one after the
other then differ by that, and configurations that take turns within one, a thirtieth of a second each, do not.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TypeVar

SWEEPS = 50
"""Rounds share configurations, so levels and paces are found in turn; a few sweeps settle them."""
_MEDIAN_ERROR = 1.2533
"""The standard error of a median over that of a mean, for errors as the bell curve has them."""
_MAD_TO_SD = 1.4826
K = TypeVar("K")
Round = Mapping[K, Sequence[float]]
"""Milliseconds a sample of each that took turns, turn by turn."""


def beside_others(found: Round[K]) -> dict[K, float]:
    """The logarithm of each one's time over the geometric mean of all, the median over turns."""
    return {one: statistics.median(logs) for one, logs in _logs(found).items()}


def at_one_pace(found: Round[K]) -> dict[K, list[float]]:
    """The same times, with what each turn took longer or shorter for all taken out."""
    pace = statistics.fmean(math.log(statistics.median(times)) for times in found.values())
    return {one: [math.exp(log + pace) for log in logs] for one, logs in _logs(found).items()}


def error_of(found: Round[K]) -> float:
    """The standard error of what :func:`beside_others` says, as a fraction, pooled over those that took turns."""
    squares = []
    for logs in _logs(found).values():
        centre = statistics.median(logs)
        spread = _MAD_TO_SD * statistics.median(abs(log - centre) for log in logs)
        squares.append((_MEDIAN_ERROR * spread) ** 2 / len(logs))
    return math.sqrt(statistics.fmean(squares))


def fair_rates(rounds: Sequence[Round[K]], alone: Mapping[K, float]) -> dict[K, list[float]]:
    """Samples a second of each that took turns, one for each of its rounds, with every round at one pace.

    ``alone`` are rates that were measured alone: they say how fast the machine is, and nothing of who is faster.
    """
    known = [beside_others(found) for found in rounds]
    levels = {one: -math.log(alone[one]) for logs in known for one in logs}
    paces = [0.0] * len(known)
    for _ in range(SWEEPS):
        paces = [statistics.fmean(log - levels[one] for one, log in logs.items()) for logs in known]
        levels = {
            one: statistics.fmean(logs[one] - pace for logs, pace in zip(known, paces, strict=True) if one in logs)
            for one in levels
        }
    return {
        one: [math.exp(pace - logs[one]) for logs, pace in zip(known, paces, strict=True) if one in logs]
        for one in levels
    }


def _logs(found: Round[K]) -> dict[K, list[float]]:
    """By turn, the logarithm of each one's time over the geometric mean of that turn; as many turns as all had."""
    logs = {one: [math.log(ms) for ms in times] for one, times in found.items()}
    means = [statistics.fmean(turn) for turn in zip(*logs.values(), strict=False)]
    return {one: [log - mean for log, mean in zip(mine, means, strict=False)] for one, mine in logs.items()}
