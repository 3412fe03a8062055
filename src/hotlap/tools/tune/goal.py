"""What is best: the fastest, the fastest within a latency, or the leanest that is nearly as fast."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hotlap.tools.tune.rows import Estimate

PLATEAU = 0.01
"""Batches of one arm this close in rate are equal, and the smallest of them is taken."""
MEMORY_SHARE = 0.95
"""Of the best rate that the leanest configuration must keep."""


@dataclass(frozen=True)
class Goal:
    """The order in which configurations are preferred."""

    objective: str
    p95_ms: float | None = None

    @property
    def by_rate(self) -> bool:
        """Whether the highest rate is what is asked for, of all or of those within the latency."""
        return self.objective == "throughput" or (self.objective == "latency" and self.p95_ms is not None)

    def admits(self, found: Estimate) -> bool:
        return self.p95_ms is None or found.p95_ms <= self.p95_ms

    def order(self, found: Iterable[Estimate]) -> list[Estimate]:
        """The admissible ones, best first."""
        known = [one for one in found if self.admits(one)]
        if self.objective == "memory":
            return self._leanest(known)
        if self.by_rate:
            return _smaller_on_plateau(sorted(known, key=lambda one: -one.rate))
        return sorted(known, key=lambda one: (one.p50_ms, -one.rate))

    def _leanest(self, known: list[Estimate]) -> list[Estimate]:
        best = max((one.rate for one in known), default=0.0)
        near = [one for one in known if one.rate >= MEMORY_SHARE * best]
        rest = sorted((one for one in known if one.rate < MEMORY_SHARE * best), key=lambda one: -one.rate)
        return sorted(near, key=lambda one: (one.peak_bytes or 0, -one.rate)) + rest

    def says(self) -> str:
        """The objective in words."""
        if self.objective == "latency" and self.p95_ms is None:
            return "the shortest step"
        limit = f" with 95% of the steps within {self.p95_ms:g} ms" if self.p95_ms is not None else ""
        if self.objective == "memory":
            return f"the smallest peak memory with at least {MEMORY_SHARE:.0%} of the best throughput" + (
                f", both{limit}" if limit else ""
            )
        return f"the highest throughput{limit}"


def _smaller_on_plateau(ranked: list[Estimate]) -> list[Estimate]:
    """The same, with the best one's smaller batches of equal rate before it."""
    if not ranked:
        return []
    best = ranked[0]
    equal = [e for e in ranked if e.config.arm == best.config.arm and e.rate >= (1 - PLATEAU) * best.rate]
    first = min(equal, key=lambda one: one.config.batch)
    return [first, *(one for one in ranked if one is not first)]
