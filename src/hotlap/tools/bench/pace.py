"""A batch whose steps are short enough for an answer in about a minute."""

from __future__ import annotations

from collections.abc import Iterable

from hotlap.records.measurement import Gate


def bearable_batch(batch: int, gates: Iterable[Gate], step_s: float) -> tuple[int, Gate | None]:
    """The batch, halved until every arm's step should take ``step_s`` at most, and the gate that asked for it.

    Steps are taken to grow with the batch from what the gate saw, and the gate's own batch is the smallest.
    """
    slowest = max((g for g in gates if g.batch and g.step_s), key=lambda g: g.step_s / g.batch, default=None)
    smaller = batch
    if slowest is not None:
        while smaller > slowest.batch and smaller * slowest.step_s / slowest.batch > step_s:
            smaller = max(smaller // 2, slowest.batch)
    return smaller, slowest if smaller < batch else None
