"""The training as a tool: a folder, a supervised process, and a record that tells how it went."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from hotlap.base import events
from hotlap.base.errors import ConfigError, HotlapError
from hotlap.base.events import Emit, ignore
from hotlap.base.format import format_count, format_rate, format_s
from hotlap.engine.config import TrainConfig, find_run
from hotlap.engine.supervise import supervise
from hotlap.engine.tuned import with_profile
from hotlap.records.environment import capture
from hotlap.records.measurement import Verdict
from hotlap.records.run import RunRecord, begin, now, run_folder, save

EXIT_INTERRUPTED = 130


def train(config: TrainConfig, emit: Emit = ignore, *, sources: dict[str, str] | None = None) -> RunRecord:
    """Trains a target; the record's folder holds checkpoints, metrics and what happened on the way."""
    if not config.target:
        raise ConfigError("no target was given", remedy="Name one, as in 'hotlap train unet', or give --resume")
    config, sources, told = with_profile(config, sources or {}, emit)
    name = config.name or config.target.rpartition(":")[2]
    folder = find_run(config.resume, config.runs) if config.resume else run_folder(config.runs, name)
    which = config.resume if Path(config.resume).is_file() else ("latest" if config.resume else "")
    record = save(begin("train", name, config, sources, capture(import_torch=False)), folder)
    try:
        done = supervise(config, folder, which, emit)
    except KeyboardInterrupt:
        _close(record, folder, "interrupted", notes=["Stopped at once; --resume goes on from the last checkpoint."])
        raise
    except HotlapError as error:
        _close(record, folder, "failed", notes=[str(error)])
        raise
    finally:
        emit(events.finish("train"))
    outcome = done.outcome
    extra = {"outcome": outcome, "restarts": done.restarts, "workers": done.config.workers}
    notes = [*told, *outcome["warnings"], *(f"Started again: {why}." for why in done.restarts)]
    return _close(record, folder, outcome["status"], notes=notes, extra=extra, verdict=_verdict(outcome))


def _close(record: RunRecord, folder: Path, status: str, **changes: Any) -> RunRecord:
    return save(dataclasses.replace(record, status=status, finished_at=now(), **changes), folder)


def _verdict(outcome: dict[str, Any]) -> Verdict:
    """One line: what was reached, how fast, and what it took."""
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in list(outcome["metrics"].items())[:3])
    parts = [f"{outcome['step']} steps", metrics, format_rate(outcome["samples_per_s"])]
    if outcome["num_splits"]:
        split = format_count(outcome["num_splits"], "time")
        parts.append(f"memory ran out {split}, no step was lost ({format_s(outcome['recovery_s'])} at most)")
    if outcome["num_bad_samples"]:
        parts.append(f"{format_count(outcome['num_bad_samples'], 'bad sample')} left out")
    stopped = outcome["status"] == "interrupted"
    headline = ("stopped after " if stopped else "trained ") + "; ".join(part for part in parts if part)
    return Verdict(outcome=outcome["status"], headline=headline, exit_code=EXIT_INTERRUPTED if stopped else 0)


def preview(config: TrainConfig) -> list[str]:
    """What a run with this config would do; nothing is trained."""
    from hotlap.targets import load_target

    workload = load_target(config.target, config.workload, config.input)
    data = workload.train_data()
    batch = config.batch or workload.default_batch
    lines = [f"target     {workload.name}: {workload.summary}"]
    if data is None:
        return [*lines, f"data       none of its own: {16 * batch} samples drawn by make_batch"]
    steps = -(-len(data) // batch)  # type: ignore[arg-type]
    return [
        *lines,
        f"data       {len(data)} samples, {steps} steps of {batch} an epoch, {config.epochs} epochs",  # type: ignore[arg-type]
    ]
