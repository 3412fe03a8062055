"""Advice put to the test: the arms it names, gated and timed against the profiled one in fresh processes."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from typing import Any

from hotlap.base import events
from hotlap.base.events import Emit
from hotlap.measure.arms import parse_arm
from hotlap.measure.jobs import Gates, Timings
from hotlap.measure.process import run_job
from hotlap.measure.timed import Protocol
from hotlap.records.codec import decode, encode
from hotlap.records.measurement import Measurement
from hotlap.tools.profile.found import Advice

CHECKED = 3
PROCESSES = 3
GATE_STEPS = 3
BRIEF = Protocol(
    process=0, repeats=10, seconds=0.5, max_seconds=10.0, warmup_seconds=10.0, transfer=False, began_at=0.0
)
"""Enough to see whether an estimate was near; the bench's own protocol is for claims."""


def check_advice(
    advice: Sequence[Advice], base: str, job: dict[str, Any], timeout_s: float, emit: Emit
) -> tuple[list[Advice], list[Measurement], list[str]]:
    """The advice with measured gains beside its estimates, the samples, and what could not be checked."""
    arms = list(dict.fromkeys(a.arm for a in advice if a.arm))[:CHECKED]
    if not arms:
        return list(advice), [], ["None of the advice names an arm, so nothing was checked."]
    common = {**job, "arms": [base, *arms]}
    emit(events.advance("profile", 0, None, "gate of the advised arms"))
    gates: Gates = decode(Gates, run_job({**common, "job": "gate", "steps": GATE_STEPS}, timeout_s=timeout_s))
    right = {gate.arm: gate.passed for gate in gates.gates}
    notes = [f"{failure.arm} could not be checked: {failure.what}" for failure in gates.failures]
    failed = {failure.arm for failure in gates.failures}
    common["arms"] = [arm for arm in common["arms"] if arm not in failed]
    samples: list[Measurement] = []
    for process in range(PROCESSES):
        emit(events.advance("profile", process, PROCESSES, f"timing the advised arms, process {process + 1}"))
        protocol = encode(dataclasses.replace(BRIEF, process=process, began_at=time.time()))
        answer = run_job({**common, "job": "timing", "protocol": protocol}, timeout_s=timeout_s)
        found: Timings = decode(Timings, answer)
        samples += [m for m in found.measurements if m.quantity == "wall"]
        notes += [f"{failure.arm} could not be checked: {failure.what}" for failure in found.failures]
    medians = {arm: _median(samples, arm, parse_arm(arm).batch or job["batch"]) for arm in common["arms"]}
    return [_with_result(a, base, medians, right) for a in advice], samples, list(dict.fromkeys(notes))


def _median(samples: Sequence[Measurement], arm: str, batch: int) -> float | None:
    """Of the processes' medians, a sample."""
    found = [statistics.median(m.values) / batch for m in samples if m.arm == arm and m.values]
    return statistics.median(found) if found else None


def _with_result(advice: Advice, base: str, medians: dict[str, float | None], right: dict[str, bool]) -> Advice:
    before, after = medians.get(base), medians.get(advice.arm)
    if not advice.arm or before is None or after is None:
        return advice
    return dataclasses.replace(advice, measured=before / after, right=right.get(advice.arm))
