"""A against A: how often does this bench, on this machine, see a difference where there is none?"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from hotlap.base import events, stats
from hotlap.base.errors import EXIT_CHECK_FAILED, EXIT_OK, HotlapError, OutOfMemory, TargetError, UsageError
from hotlap.base.events import Emit, ignore
from hotlap.device.probe import require_cuda
from hotlap.measure.arms import parse_arm
from hotlap.measure.compared import samples_of
from hotlap.measure.jobs import Timings
from hotlap.measure.process import run_job
from hotlap.measure.timed import Protocol
from hotlap.records.codec import decode, encode
from hotlap.records.environment import capture
from hotlap.records.measurement import Measurement, Verdict
from hotlap.records.run import RunRecord, begin, now, run_folder, save
from hotlap.tools.bench.config import BenchConfig
from hotlap.tools.bench.run import describe

ROUNDS = 5
PAIRS = 8
"""Pairs of identical arms timed side by side; ROUNDS times PAIRS comparisons in all."""
MAX_RATE = 0.05


def self_test(config: BenchConfig, emit: Emit = ignore, *, sources: dict[str, str] | None = None) -> RunRecord:
    """Times an arm against itself 40 times by the full protocol and counts the differences it names."""
    arm = config.arms[0] if config.arms else "cpu"
    spec = parse_arm(arm)
    if spec.tuned:
        raise UsageError(f"arm {arm!r} stands for the winner of a race", expected="an arm to be timed against itself")
    about = describe(config)
    if spec.device == "cuda" and spec.index >= about.num_cuda:
        require_cuda(spec.index)  # here, so that no record is left of a run that cannot begin
    config = dataclasses.replace(config, batch=config.batch or about.default_batch)
    labels = [f"{arm} {side}{pair}" for pair in range(PAIRS) for side in "AB"]
    record = begin("self-test", config.name or "self-test", config, sources or {}, capture())
    folder = run_folder(config.runs, record.name)
    began = time.time()
    rounds: list[list[Measurement]] = []
    total = ROUNDS * config.processes
    emit(events.start("self-test", total))
    try:
        for number in range(ROUNDS):
            rounds.append([])
            for process in range(config.processes):
                job = _job(config, arm, labels, process, began)
                emit(
                    events.advance(
                        "self-test",
                        number * config.processes + process,
                        total,
                        f"round {number + 1} of {ROUNDS}, process {process + 1}",
                    )
                )
                found: Timings = decode(Timings, run_job(job, timeout_s=config.timeout_s))
                _raise_failure(found, config)
                rounds[-1] += found.measurements
            record = save(_snapshot(record, rounds, config), folder)
    except KeyboardInterrupt:
        save(dataclasses.replace(record, status="interrupted", finished_at=now()), folder)
        raise
    except HotlapError as error:
        save(dataclasses.replace(record, status="failed", finished_at=now(), notes=[str(error)]), folder)
        raise
    finally:
        emit(events.finish("self-test"))
    return save(_judge(record), folder)


def _raise_failure(found: Timings, config: BenchConfig) -> None:
    """Without both sides of every pair there is nothing to count."""
    if found.failures:
        kind = OutOfMemory if found.failures[0].out_of_memory else TargetError
        raise kind(f"target {config.target!r} could not be timed: {found.failures[0].what}")


def _job(config: BenchConfig, arm: str, labels: list[str], process: int, began: float) -> dict[str, Any]:
    protocol = Protocol(
        process=process,
        repeats=config.repeats,
        seconds=min(config.seconds, 0.1),
        max_seconds=config.max_seconds,
        warmup_seconds=config.warmup_seconds,
        transfer=False,
        began_at=began,
    )
    return {
        "job": "timing",
        "target": config.target,
        "options": config.workload,
        "inputs": list(config.input),
        "mode": config.mode,
        "batch": config.batch,
        "seed": config.seed,
        "arms": [arm] * len(labels),
        "labels": labels,
        "protocol": encode(protocol),
    }


def _snapshot(record: RunRecord, rounds: list[list[Measurement]], config: BenchConfig) -> RunRecord:
    ratios, verdicts, measurements = [], [], []
    for number, found in enumerate(rounds):
        arms = list(dict.fromkeys(m.arm for m in found))
        for first, second in zip(arms[::2], arms[1::2], strict=True):
            base, other = samples_of(found, first, "wall"), samples_of(found, second, "wall")
            decision = stats.compare(base, other, paired=True, min_effect=config.min_effect)
            ratios.append(decision.ratio.value)
            verdicts.append(decision.verdict)
        measurements += [
            dataclasses.replace(m, arm=f"round {number + 1} {m.arm}") for m in found if m.quantity == "wall"
        ]
    false = sum(verdict != "inconclusive" for verdict in verdicts)
    summary = {
        "comparisons": len(verdicts),
        "false_positives": false,
        "rate": false / len(verdicts),
        "allowed": MAX_RATE,
        "ratios": ratios,
    }
    return dataclasses.replace(record, measurements=measurements, extra={"self_test": summary})


def _judge(record: RunRecord) -> RunRecord:
    found = record.extra["self_test"]
    good = found["rate"] <= MAX_RATE
    headline = (
        f"A against A: {found['false_positives']} of {found['comparisons']} comparisons named a difference "
        f"({found['rate']:.1%}, at most {MAX_RATE:.0%} is right)"
    )
    verdict = Verdict(
        outcome="trustworthy" if good else "too noisy",
        headline=headline if good else headline + "; this machine is too noisy to trust small differences",
        exit_code=EXIT_OK if good else EXIT_CHECK_FAILED,
    )
    return dataclasses.replace(record, status="complete", finished_at=now(), verdict=verdict)
