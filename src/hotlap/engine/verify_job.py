"""What a consumer of a tuned profile really does, seen by hooks on its model: batch, number format, layout, compile.

Samples are counted where the consumer hands over a batch, by the rule of all batches: a model may be given its time
first, or several of its rows for each sample. Hooks see a recorded pass only while it is new and once more when it is
recorded; replays are counted by the step.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hotlap.base import events
from hotlap.base.errors import UsageError
from hotlap.device.kept_memory import is_memory_kept
from hotlap.device.layout import has_convolutions, is_channels_last
from hotlap.device.precision import fp32_precision
from hotlap.device.seed import generator
from hotlap.engine.config import TrainConfig
from hotlap.engine.loop import Trainer
from hotlap.engine.parts import allowed_attention, pick_device
from hotlap.engine.split import num_samples
from hotlap.measure.arms import parse_arm
from hotlap.measure.folded import NORMS
from hotlap.measure.loaded_workload import watched
from hotlap.measure.padded import PaddedConv2d
from hotlap.measure.process import Listen
from hotlap.measure.servable import ModelSpec, Rows
from hotlap.measure.served_workload import WorkloadServable
from hotlap.measure.session import kernel_layers
from hotlap.measure.shuffled import ShuffledConvTranspose2d
from hotlap.measure.unbiased import CONVOLUTIONS
from hotlap.records.codec import decode
from hotlap.targets import SERVABLES, load_target
from hotlap.workload import Batch, Workload, adopt, optimizer_of

NUM_STEPS = 3
MOST_STEPS = 60
"""Of a training that records: in short epochs each second batch may be a ragged one, with a shape of its own."""
CAST = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.RNNBase)
"""Layers that autocast runs in the short format."""
LAID_OUT = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)
"""Layers whose weights have a memory format."""
OUTSIDE_BACKWARD = -1
"""Autograd's number of the backward pass under way, where none is."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What the hooks saw in a few steps."""

    batches: list[int] = field(default_factory=list)
    """Samples in each pass that came through."""
    micro: int | None = None
    """Samples of the parts that a training has split its batches into for lack of memory; None where it did not."""
    dtypes: list[str] = field(default_factory=list)
    """Number formats of what the layers gave that autocast is for; where there is none, what autocast was set to."""
    channels_last: bool | None = None
    """How convolutions wrote their output; None where that cannot be told, or is the model's own doing."""
    weights_last: bool | None = None
    """How most of their weights lie; None where that cannot be told."""
    compiled: bool = False
    tf32: bool = False
    cudnn_benchmark: bool = False
    threads: int = 0
    fused: bool | None = None
    """Of the optimizer; None where there is none, and where the workload's own is fused in any case."""
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
    sdpa: list[str] = field(default_factory=list)
    """Implementations that attention was allowed."""


class Observer:
    """Hooks that write down what passes through a model; they see what a compiled model was traced with, too."""

    def __init__(self, *, training: bool) -> None:
        self.training = training
        self.model: nn.Module | None = None
        self.norms: set[nn.Module] = set()
        self.no_proof: set[nn.Module] = set()
        self.forget()

    def forget(self) -> None:
        """Begins anew."""
        self.batches: list[int] = []
        self.cast: list[str] = []
        self.autocast: list[str] = []
        self.sdpa: list[str] = []
        self.layouts: list[bool] = []
        self.compiled: list[bool] = []
        self.num_padded, self.num_shuffled, self.num_unbiased = 0, 0, 0
        self.num_kernels, self.num_recomputed = 0, 0

    def attach(self, model: nn.Module) -> nn.Module:
        self.model, self.norms = model, {m for m in model.modules() if isinstance(m, NORMS)}
        # Layers that were built in another number format compute in it without autocast's doing.
        self.no_proof = {m for m in model.modules() if any(p.dtype != torch.float32 for p in m.parameters(False))}
        model.register_forward_pre_hook(self._enter)
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

    def _enter(self, module: nn.Module, args: Any) -> None:
        if module.training == self.training:
            self.compiled.append(torch.compiler.is_compiling())

    def count(self, batch: Batch) -> None:
        """Writes down a pass over a batch that came through, with what it ran under."""
        if self.model is None or self.model.training != self.training:
            return
        on = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
        short = torch.get_autocast_dtype(on[0]) if on else torch.float32
        self.batches.append(num_samples(batch))
        self.autocast.append(str(short).removeprefix("torch."))
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
        if isinstance(module, CAST) and module not in self.no_proof:
            self.cast.append(str(found.dtype).removeprefix("torch."))
        if has_convolutions(module):
            last = is_channels_last(found)
            self.layouts += [] if last is None else [last]

    def seen(self, optimizer: torch.optim.Optimizer | None, num_replays: int = 0) -> Observed:
        fused = None if optimizer is None else _is_fused(optimizer)
        return Observed(
            batches=list(self.batches),
            dtypes=sorted(set(self.cast or self.autocast)),
            channels_last=_most(self.layouts),
            weights_last=_most(self._weights()),
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
            sdpa=list(self.sdpa),
        )

    def _weights(self) -> list[bool]:
        found = [] if self.model is None else [m.weight for m in self.model.modules() if isinstance(m, LAID_OUT)]
        return [last for weight in found if (last := is_channels_last(weight)) is not None]


def _most(layouts: Sequence[bool]) -> bool | None:
    return sum(layouts) * 2 >= len(layouts) if layouts else None


class _Watched:
    """What a workload says, but for models that are built with the observer's hooks and passes that it counts."""

    def __init__(self, workload: Workload, observer: Observer) -> None:
        self._workload, self._observer = workload, observer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)

    def build_model(self) -> nn.Module:
        return self._observer.attach(self._workload.build_model())

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        made = self._workload.loss(model, batch)
        self._observer.count(batch)
        return made

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        made = self._workload.predict(model, batch)
        self._observer.count(batch)
        return made


class _Loading:
    """Has models that are loaded to be served watched, and keeps the rows that they are tried with."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.example: Rows | None = None

    def loading(self, workload: Workload) -> Workload:
        return adopt(_Watched(workload, self._observer), workload.name)

    def warming(self, example: Rows) -> None:
        self._observer.forget()  # until here the model was only asked for its inputs
        self.example = example


def watch(job: dict[str, Any], listen: Listen) -> Observed:
    """The job: ``mode`` train with the trainer's ``config``, or infer with ``arm``, ``batch``, ``target`` and so on."""
    listen("running the consumer", 0, 1)
    observer = Observer(training=job["mode"] == "train")
    if job["mode"] == "train":
        config: TrainConfig = decode(TrainConfig, job["config"])
        workload = load_target(config.target, config.workload, config.input)
        seen, is_asked = _watch_training(workload, config, observer), config.channels_last
    else:
        workload = load_target(job["target"], job.get("options"), job.get("inputs", ()))
        seen, is_asked = _watch_serving(job, observer), parse_arm(job["arm"]).channels_last
    if (
        seen.channels_last
        and not is_asked
        and _lays_itself_out(workload, min(seen.batches, default=2), observer.training)
    ):
        return dataclasses.replace(seen, channels_last=None)
    return seen


def _lays_itself_out(workload: Workload, most: int, training: bool) -> bool:
    """Whether the convolutions of a model write channels last though nobody asked them to."""
    plain = Observer(training=training)
    model = plain.attach(workload.build_model()).train(training)
    run = workload.loss if training else workload.predict
    with torch.no_grad():
        run(model, workload.make_batch(min(2, most), torch.device("cpu"), generator(0)))
    return plain.seen(None).channels_last is True


def _watch_serving(job: dict[str, Any], observer: Observer) -> Observed:
    """A few full batches through the model as ``hotlap serve`` holds it: some targets have a servable of their own."""
    target, arm = job["target"], parse_arm(job["arm"])
    spec = ModelSpec(
        name=target,
        target=target,
        options=job.get("options") or {},
        inputs=tuple(job.get("inputs", ())),
        arm=arm.name,
        rows=job["batch"],
    )
    kind = SERVABLES.get(target) if target in SERVABLES else WorkloadServable
    if not getattr(kind, "takes_arm", True):
        raise UsageError(f"'hotlap serve {target}' runs it in one way, whatever a profile says")
    loading = _Loading(observer)
    with watched(loading):
        loaded = kind(spec).load(arm.torch_device)
    if loading.example is None:
        raise UsageError(f"'hotlap serve {target}' loads it in a way of its own, which cannot be watched")
    if not (arm.graph or arm.compile):  # of those, hooks saw what was recorded or traced, and see nothing more
        observer.forget()
    full = tuple(t[:1].repeat(loaded.signature.rows, *[1] * (t.ndim - 1)) for t in loading.example)
    for _ in range(NUM_STEPS):
        loaded.begin([full])()
    return observer.seen(None)


def _watch_training(workload: Workload, config: TrainConfig, observer: Observer) -> Observed:
    """A few steps of the real trainer, in a folder that is thrown away; more until there are replays, if it records."""

    def is_enough() -> bool:
        step = trainer.progress.step
        if config.graph and trainer.parts.step.num_replays < NUM_STEPS:
            return step >= MOST_STEPS
        return step >= NUM_STEPS

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            adopt(_Watched(workload, observer), workload.name),
            dataclasses.replace(config, epochs=MOST_STEPS),
            Path(folder),
            pick_device(config.device),
            emit=events.ignore,
            should_stop=is_enough,
        )
        trainer.run()
        parts = trainer.parts
        own = optimizer_of(workload, parts.model, fused=False)
        seen = observer.seen(None if _is_fused(own) else parts.optimizer, parts.step.num_replays)
        split = parts.step.micro if parts.step.micro != config.micro else None
        return dataclasses.replace(seen, micro=split, why_not=parts.step.graphs.why_not if parts.step.graphs else "")


def _is_fused(optimizer: torch.optim.Optimizer) -> bool:
    return any(bool(group.get("fused")) for group in optimizer.param_groups)
