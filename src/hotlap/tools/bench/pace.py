"""A batch whose steps are short enough for an answer in about a minute."""

from __future__ import annotations

from collections.abc import Sequence

from hotlap.records.measurement import Gate


def bearable_batch(batch: int, gates: Sequence[Gate], seconds: float) -> tuple[int, float]:
    """The batch, halved until a step of every arm should take ``seconds`` in all, and what it may take whole.

    Steps are taken to grow in proportion to the batch from what the gates saw, which is the most that they may take:
    steps that wait for launches grow less. The gates' own batch is the smallest.
    """
    known = [gate for gate in gates if gate.batch and gate.step_s]
    per_sample = sum(gate.step_s / gate.batch for gate in known)
    least = max((gate.batch for gate in known), default=batch)
    smaller = batch
    while smaller > least and smaller * per_sample > seconds:
        smaller = max(smaller // 2, least)
    return smaller, batch * per_sample
