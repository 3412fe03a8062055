"""What a consumer of a tuned profile really does, seen by hooks on its model: batch, number format, layout, compile.

Hooks see a recorded pass only while it is new and once more when it is recorded; replays are counted by the step.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from hotlap.base import events
from hotlap.device.kept_memory import is_memory_kept
from hotlap.device.layout import has_convolutions, is_channels_last
from hotlap.device.precision import fp32_precision
from hotlap.engine.config import TrainConfig
from hotlap.engine.loop import Trainer
from hotlap.engine.parts import allowed_attention, pick_device
from hotlap.measure.arms import ArmSpec, parse_arm
from hotlap.measure.folded import NORMS
from hotlap.measure.loaded_workload import LoadedWorkload
from hotlap.measure.padded import PaddedConv2d
from hotlap.measure.process import Listen
from hotlap.measure.servable import Rows
from hotlap.measure.session import kernel_layers
from hotlap.measure.shuffled import ShuffledConvTranspose2d
from hotlap.measure.unbiased import CONVOLUTIONS
from hotlap.records.codec import decode
from hotlap.targets import load_target
from hotlap.workload import Workload

NUM_STEPS = 3
MOST_STEPS = 60
"""Of a training that records: in short epochs each second batch may be a ragged one, with a shape of its own."""
CAST = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.RNNBase)
"""Layers that autocast runs in the short format."""
OUTSIDE_BACKWARD = -1
"""Autograd's number of the backward pass under way, where none is."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What the hooks saw in a few steps."""

    batches: list[int] = field(default_factory=list)
    """Sizes that reached the model, one for each call."""
    dtypes: list[str] = field(default_factory=list)
    """Number formats of what the layers gave that autocast is for; where there is none, what autocast was set to."""
    channels_last: bool | None = None
    """How convolutions wrote their output; None where that cannot be told."""
    compiled: bool = False
    tf32: bool = False
    cudnn_benchmark: bool = False
    threads: int = 0
    fused: bool | None = None
    """Of the optimizer; None where there is none."""
    num_replays: int = 0
    """Passes that were replays of recorded ones."""
    keeps_memory: bool = False
    why_not: str = ""
    """Why passes are not recorded, where they were to be."""
    num_folded: int = 0
    """BatchNorm layers that the model was built with and no longer has; norms that follow no convolution stay."""
    num_padded: int = 0
    """Calls of convolutions that compute with more channels than they have."""
    num_shuffled: int = 0
    """Calls of transposed convolutions that are matrix products."""
    num_unbiased: int = 0
    """Calls of convolutions that leave their bias out."""
    num_kernels: int = 0
    """Calls of layers that were told to use kernels of ours."""
    num_recomputed: int = 0
    """Calls of layers during a backward pass."""
    sdpa: list[str] | None = None
    """Implementations that attention was allowed; None where the model was traced, and nothing could be seen."""


class Observer:
    """Hooks that write down what passes through a model; they see what a compiled model was traced with, too."""

    def __init__(self, *, training: bool) -> None:
        self.training = training
        self.model: nn.Module | None = None
        self.norms: set[nn.Module] = set()
        self.forget()

    def forget(self) -> None:
        """Begins anew."""
        self.batches: list[int] = []
        self.cast: list[str] = []
        self.autocast: list[str] = []
        self.sdpa: list[str] | None = None
        self.layouts: list[bool] = []
        self.compiled: list[bool] = []
        self.num_padded, self.num_shuffled, self.num_unbiased = 0, 0, 0
        self.num_kernels, self.num_recomputed = 0, 0

    def attach(self, model: nn.Module) -> nn.Module:
        self.model, self.norms = model, {m for m in model.modules() if isinstance(m, NORMS)}
        model.register_forward_pre_hook(self._enter, with_kwargs=True)
        for module in model.modules():
            if not list(module.children()):
                module.register_forward_hook(self._leave)
        for layer in kernel_layers(model):
            told = partial(self._told_to_use_kernels, layer, layer.use_kernels)  # type: ignore[arg-type]
            layer.use_kernels = told  # type: ignore[assignment]
        return model

    def _told_to_use_kernels(self, layer: nn.Module, own: Callable[[], None]) -> None:
        own()
        layer.register_forward_hook(self._leave_kernel)

    def _leave_kernel(self, module: nn.Module, args: Any, out: Any) -> None:
        self.num_kernels += module.training == self.training

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if module.training != self.training:
            return
        first = next(t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.ndim)
        kind = first.device.type
        short = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
        self.batches.append(first.shape[0])
        self.autocast.append(str(short).removeprefix("torch."))
        self.compiled.append(torch.compiler.is_compiling())
        if not torch.compiler.is_compiling():
            self.sdpa = allowed_attention()

    def _leave(self, module: nn.Module, args: Any, out: Any) -> None:
        found = out[0] if isinstance(out, tuple) else out
        if module.training != self.training or not isinstance(found, Tensor) or not found.is_floating_point():
            return
        if not torch.compiler.is_compiling():
            self.num_recomputed += torch._C._current_graph_task_id() != OUTSIDE_BACKWARD
        self.num_padded += isinstance(module, PaddedConv2d)
        self.num_shuffled += isinstance(module, ShuffledConvTranspose2d)
        self.num_unbiased += isinstance(module, tuple(CONVOLUTIONS.values()))
        if isinstance(module, CAST) and found.dtype != torch.float64:  # which autocast leaves as it is
            self.cast.append(str(found.dtype).removeprefix("torch."))
        if has_convolutions(module):
            last = is_channels_last(found)
            self.layouts += [] if last is None else [last]

    def seen(self, optimizer: torch.optim.Optimizer | None, num_replays: int = 0) -> Observed:
        fused = None if optimizer is None else any(bool(group.get("fused")) for group in optimizer.param_groups)
        return Observed(
            batches=list(self.batches),
            dtypes=sorted(set(self.cast or self.autocast)),
            channels_last=sum(self.layouts) * 2 >= len(self.layouts) if self.layouts else None,
            compiled=any(self.compiled),
            tf32=fp32_precision()["matmul"] == "tf32",
            cudnn_benchmark=bool(torch.backends.cudnn.benchmark),
            threads=torch.get_num_threads(),
            fused=fused,
            num_replays=num_replays,
            keeps_memory=is_memory_kept(),
            num_folded=len(self.norms - set(self.model.modules())) if self.model is not None else 0,
            num_padded=self.num_padded,
            num_shuffled=self.num_shuffled,
            num_unbiased=self.num_unbiased,
            num_kernels=self.num_kernels,
            num_recomputed=self.num_recomputed,
            sdpa=self.sdpa,
        )


class _Watched:
    """A workload whose models are built with the observer's hooks on them."""

    def __init__(self, workload: Workload, observer: Observer) -> None:
        self.observer, self._build = observer, workload.build_model

    def build_model(self) -> nn.Module:
        return self.observer.attach(self._build())


def watch(job: dict[str, Any], listen: Listen) -> Observed:
    """The job: ``mode`` train with the trainer's ``config``, or infer with ``arm``, ``batch``, ``target`` and so on."""
    listen("running the consumer", 0, 1)
    observer = Observer(training=job["mode"] == "train")
    if job["mode"] == "train":
        config: TrainConfig = decode(TrainConfig, job["config"])
        workload = load_target(config.target, config.workload, config.input)
        return _watch_training(workload, config, observer)
    workload = load_target(job["target"], job.get("options"), job.get("inputs", ()))
    return _watch_serving(workload, parse_arm(job["arm"]), job["batch"], observer)


def _watch_serving(workload: Workload, arm: ArmSpec, batch: int, observer: Observer) -> Observed:
    """A few full batches through the model as a server holds it."""
    workload.build_model = _Watched(workload, observer).build_model  # type: ignore[method-assign]

    class Served(LoadedWorkload):
        def _warm(self, example: Rows, rows: int) -> tuple[int, Tensor]:
            observer.forget()  # until here the model was only asked for its inputs
            return super()._warm(example, rows)

    served = Served(workload, arm, batch)
    if not (arm.graph or arm.compile):  # of those, hooks saw what was recorded or traced, and see nothing more
        observer.forget()
    inputs = served.signature.inputs
    rows = tuple(torch.zeros(served.signature.rows, *spec.shape, dtype=getattr(torch, spec.dtype)) for spec in inputs)
    for _ in range(NUM_STEPS):
        served.run(rows)
    return observer.seen(None)


def _watch_training(workload: Workload, config: TrainConfig, observer: Observer) -> Observed:
    """A few steps of the real trainer, in a folder that is thrown away; more until there are replays, if it records."""

    def is_enough() -> bool:
        step = trainer.progress.step
        if config.graph and trainer.parts.step.num_replays < NUM_STEPS:
            return step >= MOST_STEPS
        return step >= NUM_STEPS

    workload.build_model = _Watched(workload, observer).build_model  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            workload,
            dataclasses.replace(config, epochs=MOST_STEPS),
            Path(folder),
            pick_device(config.device),
            emit=events.ignore,
            should_stop=is_enough,
        )
        trainer.run()
        step = trainer.parts.step
        seen = observer.seen(trainer.parts.optimizer, step.num_replays)
        return dataclasses.replace(seen, why_not=step.graphs.why_not if step.graphs else "")
