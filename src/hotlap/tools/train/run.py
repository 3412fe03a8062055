"""The training as a tool: a folder, a supervised process, and a record that tells how it went."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotlap.base import events
from hotlap.base.errors import ConfigError, DataError, HotlapError, TargetError, UsageError
from hotlap.base.events import Emit, ignore
from hotlap.base.format import format_count, format_rate, format_s, format_target
from hotlap.engine.config import CHECKPOINTS, STOPPED_AT_ONCE, TrainConfig, find_training
from hotlap.engine.place import find_place
from hotlap.engine.supervise import supervise
from hotlap.engine.tuned import with_profile
from hotlap.records.environment import capture
from hotlap.records.measurement import Verdict
from hotlap.records.run import RunRecord, begin, now, run_folder, save
from hotlap.targets import short_name
from hotlap.tools.train.launch import refuse_fsdp_alone, run_torchrun
from hotlap.tools.train.member import train_in_team

EXIT_INTERRUPTED = 130


def train(config: TrainConfig, emit: Emit = ignore, *, sources: dict[str, str] | None = None) -> RunRecord:
    """Trains a target; the record's folder holds checkpoints, metrics and what happened on the way."""
    _check_given(config)
    refuse_fsdp_alone(config)
    place = find_place()
    if place is not None:
        return train_in_team(config, emit, sources or {}, place, _end)
    if config.nproc > 1:
        return run_torchrun(config, emit)
    config, sources, told = with_profile(config, sources or {}, emit)
    earlier = find_training(config.resume, config.runs, config.target) if config.resume else None
    name = config.name or short_name(config.target)
    folder = Path(earlier.path).parent if earlier else run_folder(config.runs, name)
    starts = {"earlier": _history(earlier)} if earlier else {}
    record = begin("train", name, config, sources, capture(import_torch=False))
    record = save(dataclasses.replace(record, extra=starts), folder)
    try:
        done = supervise(config, folder, which_checkpoint(config.resume), emit)
    except KeyboardInterrupt:
        _close(record, folder, "interrupted", verdict=_ended("interrupted", STOPPED_AT_ONCE, EXIT_INTERRUPTED))
        raise
    except HotlapError as error:
        if earlier and _is_wrong_request(error):
            save(earlier, folder)  # or the next --resume would take over the setting that was refused
        else:
            _close(record, folder, "failed", verdict=_ended("failed", str(error), error.exit_code))
        raise
    finally:
        emit(events.finish("train"))
    return _end(record, folder, done.outcome, done.restarts, workers=done.outcome.get("workers", 0), told=told)


def _check_given(config: TrainConfig) -> None:
    if not config.target:
        raise ConfigError("no target was given", remedy="Name one, as in 'hotlap train unet', or give --resume")


def _end(
    record: RunRecord,
    folder: Path,
    came: dict[str, Any] | HotlapError,
    restarts: list[str],
    *,
    told: Sequence[str] = (),
    **extra: Any,
) -> RunRecord:
    """The record of a training that is over: what came of it is an outcome or an error."""
    notes = [*told, *(f"Started again: {why}." for why in restarts)]
    if isinstance(came, HotlapError):
        verdict = _ended("failed", str(came), came.exit_code)
        return _close(record, folder, "failed", notes=notes, verdict=verdict)
    extra = {**record.extra, "outcome": came, "restarts": restarts, **extra}
    notes = [*came["warnings"], *notes]
    return _close(record, folder, came["status"], notes=notes, extra=extra, verdict=_verdict(came, restarts))


def _ended(outcome: str, why: str, exit_code: int) -> Verdict:
    """Of a training without an outcome of its own."""
    return Verdict(outcome=outcome, headline=why, exit_code=exit_code)


def _is_wrong_request(error: HotlapError) -> bool:
    return isinstance(error, UsageError) and not isinstance(error, (TargetError, DataError))


def which_checkpoint(resume: str) -> str:
    """What a resumed training begins with: a checkpoint file that was named, or the newest; '' for a new one."""
    names_a_file = Path(resume).is_file() and Path(resume).parent.name == CHECKPOINTS
    return resume if names_a_file else "latest" if resume else ""


def _history(earlier: RunRecord) -> list[dict[str, Any]]:
    """When the run was started before, and how far each start brought it."""
    outcome = earlier.extra.get("outcome", {})
    last = {"started_at": earlier.started_at, "status": earlier.status, "step": outcome.get("step")}
    return [*earlier.extra.get("earlier", []), last]


def _close(record: RunRecord, folder: Path, status: str, **changes: Any) -> RunRecord:
    return save(dataclasses.replace(record, status=status, finished_at=now(), **changes), folder)


def _verdict(outcome: dict[str, Any], restarts: list[str]) -> Verdict:
    """What was reached and how fast in one line, then what it took."""
    metrics = ", ".join(f"{name} {_figure(value)}" for name, value in list(outcome["metrics"].items())[:3])
    parts = [format_count(outcome["step"], "step"), metrics]
    parts += [format_rate(outcome["samples_per_s"])] if outcome["samples_per_s"] else []
    stopped = outcome["status"] == "interrupted"
    headline = ("stopped after " if stopped else "trained ") + "; ".join(part for part in parts if part)
    exit_code = EXIT_INTERRUPTED if stopped else 0
    return Verdict(outcome=outcome["status"], headline=headline, lines=_story(outcome, restarts), exit_code=exit_code)


def _story(outcome: dict[str, Any], restarts: list[str]) -> list[str]:
    """What happened on the way that a user should know."""
    lines = []
    if outcome["resumed_from"] is not None:
        lines.append(f"Went on from step {outcome['resumed_from']}.")
    if outcome["num_splits"]:
        times, longest = format_count(outcome["num_splits"], "time"), format_s(outcome["recovery_s"])
        lines.append(f"Memory ran out {times}; no step was lost, and the longest replay took {longest}.")
    if outcome["recomputing"]:
        lines.append("Activation checkpointing was switched on: some layers are computed twice.")
    if outcome["num_replays"]:
        lines.append(f"{format_count(outcome['num_replays'], 'pass', 'passes')} replayed as CUDA graphs.")
    if restarts:
        lines.append(f"Started again {format_count(len(restarts), 'time')} from the last checkpoint.")
    if outcome["num_bad_samples"]:
        lines.append(f"{format_count(outcome['num_bad_samples'], 'bad sample')} left out; bad_samples.txt lists them.")
    if outcome["status"] == "interrupted":
        lines.append("--resume goes on from the last checkpoint.")
    return lines


def _figure(value: float | None) -> str:
    """A number that was not finite is null in JSON."""
    return "not finite" if value is None else f"{value:.4g}"


def preview(config: TrainConfig) -> list[str]:
    """What a run with this config would do; nothing is trained."""
    from hotlap.targets import load_target

    _check_given(config)
    workload = load_target(config.target, config.workload, config.input)
    data = workload.train_data()
    batch = config.batch or workload.default_batch
    lines = [f"target     {format_target(workload.name, workload.summary)}"]
    if data is None:
        return [*lines, f"data       none of its own: {16 * batch} samples drawn by make_batch"]
    steps = -(-len(data) // batch)  # type: ignore[arg-type]
    return [
        *lines,
        f"data       {len(data)} samples, {steps} steps of {batch} an epoch, {config.epochs} epochs",  # type: ignore[arg-type]
    ]
