"""A training on prepared views: one run of the engine for each stage, the second from the weights of the first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotlap.base import events
from hotlap.base.errors import ConfigError
from hotlap.base.events import Emit
from hotlap.base.format import format_count
from hotlap.base.settings import Layer, resolve
from hotlap.engine.config import TrainConfig, find_training
from hotlap.mesh.config import MeshTrainConfig
from hotlap.mesh.dataset import prepared_files, split_files
from hotlap.mesh.network import STAGE_NUMBERS
from hotlap.records.run import RunRecord

Train = Callable[[TrainConfig, Emit], RunRecord]
"""The tool that trains a target: config in, record back."""


@dataclass(frozen=True, kw_only=True)
class TrainedMesh:
    """What came of a training."""

    records: dict[str, str]
    """The record of each stage that was trained."""
    headlines: dict[str, str]
    weights: str
    """The last checkpoint of the last stage."""
    complete: bool
    """False when it was told to stop."""
    exit_code: int = 0

    def lines(self) -> list[str]:
        told = [f"{stage}: {headline}" for stage, headline in self.headlines.items()]
        if not self.complete:
            return [*told, "--resume goes on with it"]
        return [*told, f"weights: {self.weights}"]


def train_mesh(config: MeshTrainConfig, emit: Emit, train: Train) -> TrainedMesh:
    """Trains the stages that are asked for, one after the other; ``train`` is what trains one target."""
    split_files(prepared_files(config.data), config.hold_out)
    records: dict[str, RunRecord] = {}
    init = str(config.init) if config.init is not None else ""
    for stage in stages_of(config):
        settings = stage_config(config, stage, init)
        record = _finished(settings) if config.resume else None
        if record is None:
            emit(events.note(f"{settings.name}: {format_count(settings.epochs, 'epoch')}"))
            record = train(_resumed(settings) if config.resume else settings, emit)
        records[stage] = record
        if record.status != "complete":
            break
        init = record.extra["outcome"]["last_checkpoint"]
    last = list(records.values())[-1]
    return TrainedMesh(
        records={stage: record.path for stage, record in records.items()},
        headlines={stage: record.verdict.headline if record.verdict else "" for stage, record in records.items()},
        weights=init,
        complete=last.status == "complete",
        exit_code=last.verdict.exit_code if last.verdict else 0,
    )


def stages_of(config: MeshTrainConfig) -> list[str]:
    """The names of the stages to train, in order; the small network's only stage has the network's own name."""
    if config.network == "pixel2mesh-lite":
        return ["lite"]
    return ["coarse", "refine"] if config.stage == "both" else [config.stage]


def stage_config(config: MeshTrainConfig, stage: str, init: str) -> TrainConfig:
    """One stage as the settings of a training."""
    is_second = stage == "refine"
    workload: dict[str, Any] = {
        **config.workload,
        "data": str(config.data),
        "points": config.points,
        "hold_out": config.hold_out,
        "augment": config.augment,
    }
    if config.network == "pixel2mesh-pp":
        workload |= {"stage": STAGE_NUMBERS[stage], "views": config.views}
    if is_second:
        workload["init"] = init
    values: dict[str, Any] = {
        "target": config.network,
        "workload": workload,
        "epochs": config.refine_epochs if is_second else config.epochs,
        "batch": config.batch,
        "lr": config.refine_lr if is_second else config.lr,
        "on_bad_sample": config.on_bad_sample,
        "precision": config.precision,
        "device": config.device,
        "seed": config.seed,
        "name": f"{config.name}-{stage}",
        "runs": config.runs,
    }
    for name in config.train:
        if name in values or name == "resume":
            raise ConfigError(f"train.{name} is decided by settings of 'hotlap mesh train' itself")
    layers = [Layer("train of 'hotlap mesh train'", config.train), Layer("'hotlap mesh train'", values)]
    return resolve(TrainConfig, layers).config


def _finished(settings: TrainConfig) -> RunRecord | None:
    """The newest training of this stage, if it came to its end with as many epochs."""
    found = _begun(settings)
    is_done = found is not None and found.status == "complete" and found.config.get("epochs", 0) >= settings.epochs
    return found if is_done else None


def _resumed(settings: TrainConfig) -> TrainConfig:
    return settings if _begun(settings) is None else dataclasses.replace(settings, resume=settings.name)


def _begun(settings: TrainConfig) -> RunRecord | None:
    """The newest training of this name, if it started from the same weights; a refinement of others is another one."""
    try:
        found = find_training(settings.name, settings.runs, settings.target)
    except ConfigError:
        return None
    before, now = (Path(workload.get("init") or "") for workload in (found.config["workload"], settings.workload))
    return found if before.resolve() == now.resolve() else None
