"""The training of a network that finds cells: what it is to the engine, and what it leaves behind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hotlap.base.errors import ConfigError, DataError
from hotlap.engine.config import CHECKPOINTS, Precision, TrainConfig
from hotlap.segment.heads import head_maps

TARGET = "cells"
RUNS = "runs"
WEIGHTS = "weights.pt"
"""What a training leaves in its folder: the names and values of the network's weights."""


@dataclass(frozen=True, kw_only=True)
class SegmentTrainConfig:
    """Trains a network to find cells, and leaves its weights; goes on where it was interrupted."""

    data: Path = Path()
    """Folder with images/ and labels/ (objects numbered, 0 is background), or one npz file of them."""
    model: str = "hrnet"
    """hrnet, resunet-small, ma-resunet, unet or smp:ARCHITECTURE/ENCODER."""
    out: Path = Path("segment-train")
    """Folder for weights.pt and runs/, the records and checkpoints."""
    width: int = 0
    """Channels of the first level, for small machines; 0 for the published width."""
    head: str = "core"
    """What is predicted to tell touching cells apart: core, boundary, or foreground alone."""
    size: int = 256
    """Height and width of the crops, in pixels."""
    batch: int = 16
    """Crops per step."""
    crops: int = 4
    """Crops taken of each image in an epoch."""
    epochs: int = 100
    """Rounds through the training images."""
    steps: int | None = None
    """Ends after so many steps, if the epochs have not ended before."""
    lr: float = 5e-4
    """Highest learning rate; it rises over the first steps and then falls along a cosine."""
    warmup: int = 50
    """Steps over which the learning rate rises."""
    ema: float | None = None
    """Decay of an average of the weights, such as 0.999, which is then what is saved; for thousands of steps."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:1."""
    precision: Precision = "32-true"
    """32-true, bf16-mixed or 16-mixed."""
    channels_last: bool = False
    """Images in NHWC order."""
    compile: Literal["off", "default"] = "off"
    """torch.compile: worth its start in a long training."""
    graph: bool = False
    """Records passes as CUDA graphs: a step of hrnet is 8,000 operations, each started by the host otherwise."""
    kernels: bool = False
    """Norms and pooling by Hotlap's own kernels, on a card best with channels_last; unet and smp: have none."""
    workers: int | None = None
    """Processes that load crops; by default as many as the first steps show to be needed."""
    on_bad_sample: Literal["raise", "skip"] = "skip"
    """What to do about an image that cannot be read, or whose label is not for it; those skipped are listed in
    bad_samples.txt."""
    eval_every: int = 10
    """Epochs between evaluations on the held-out fifth."""
    seed: int = 0
    """Decides weights, order, crops and dropout."""
    resume: bool = False
    """Goes on with the last training in this folder."""

    def __post_init__(self) -> None:
        head_maps(self.head)
        if self.size < 32:
            raise ConfigError(f"size = {self.size} is not valid", expected="at least 32")


def training(config: SegmentTrainConfig) -> TrainConfig:
    """What the engine is to do."""
    if str(config.data) in ("", "."):
        raise ConfigError("no data was given", remedy="Name a folder, as in 'hotlap segment train cells --out out'")
    workload: dict[str, Any] = {
        name: getattr(config, name) for name in ("model", "width", "head", "size", "batch", "crops", "lr")
    }
    return TrainConfig(
        target=TARGET,
        name=config.model.replace(":", "-").replace("/", "-"),
        workload={**workload, "data": str(config.data)},
        runs=config.out / RUNS,
        epochs=config.epochs,
        steps=config.steps,
        batch=config.batch,
        schedule="cosine",
        warmup=config.warmup,
        clip_norm=5.0,
        ema=config.ema,
        device=config.device,
        precision=config.precision,
        channels_last=config.channels_last,
        compile=config.compile,
        graph=config.graph,
        kernels=config.kernels,
        fused=config.graph,
        tuned=False,
        workers=config.workers,
        on_bad_sample=config.on_bad_sample,
        eval_every=config.eval_every,
        seed=config.seed,
        resume="latest" if config.resume else "",
    )


def keep_weights(run: Path, out: Path) -> Path:
    """The file of weights in ``out``, from the last checkpoint of a training's folder.

    The last, not the best: the best is chosen by the held-out images, which it could then no longer be judged by.
    """
    import torch

    from hotlap.engine.checkpoint import CheckpointStore
    from hotlap.engine.durable import staged, storage_error
    from hotlap.measure.weights import read_weights

    checkpoint = CheckpointStore(run / CHECKPOINTS).load("latest")
    if checkpoint is None:
        raise DataError(f"the training in {str(run)!r} has left no checkpoint", remedy="Train it for a few steps more")
    path = out / WEIGHTS
    try:
        with staged(out, WEIGHTS) as (file, publish):
            torch.save(read_weights(checkpoint.path), file)
            publish(path)
    except OSError as error:
        raise storage_error(path, error, f"Free some space; the checkpoint is {str(checkpoint.path)!r}") from error
    return path
