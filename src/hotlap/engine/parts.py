"""Everything a training consists of, built from its settings: model, optimizer, schedule, loaders."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from hotlap.base.errors import UsageError
from hotlap.device.host_random import derived_seed
from hotlap.device.kept_memory import require_kept_memory
from hotlap.device.layout import lay_out
from hotlap.device.precision import set_fp32_precision
from hotlap.device.probe import require_cuda
from hotlap.device.seed import generator, seed_everything
from hotlap.engine.config import TrainConfig
from hotlap.engine.exact import ExactStep, Say
from hotlap.engine.loader import LoaderSettings, TrainLoader
from hotlap.engine.schedule import Schedule
from hotlap.engine.team_step import TeamStep
from hotlap.measure.padded import pad_channels
from hotlap.measure.session import map_tensors, use_kernels
from hotlap.measure.shuffled import shuffle_blocks
from hotlap.measure.unbiased import drop_biases
from hotlap.workload import Batch, Workload, optimizer_of

if TYPE_CHECKING:
    from hotlap.engine.distributed import ProcessTeam


@dataclass
class Parts:
    """One training, ready to go."""

    workload: Workload
    device: torch.device
    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    step: ExactStep
    ema: AveragedModel | None
    loader: TrainLoader
    evaluation: TrainLoader | None
    held_out: Any
    """What the evaluation loader reads; None where there is nothing to judge by."""
    num_steps: int
    sharded: bool = False

    def weights(self, *, keep: bool) -> dict[str, Any]:
        """State of model and optimizer; of sharded ones put together, in which all processes take part."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        if not self.sharded:
            return state
        from hotlap.engine.shard import whole

        return whole(state, keep=keep)  # type: ignore[no-any-return]

    def load_weights(self, state: dict[str, Any]) -> None:
        """Puts back what ``weights`` gave, sharded or not."""
        if self.sharded:
            from hotlap.engine.shard import load_whole

            load_whole(self.model, self.optimizer, state)
        else:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])


class DrawnSamples(torch.utils.data.Dataset[Batch]):
    """A data set for workloads that only make batches: sample ``i`` is drawn by a generator of its own."""

    def __init__(self, workload: Workload, num_samples: int, seed: int) -> None:
        self._workload, self._num_samples, self._seed = workload, num_samples, seed

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> Batch:
        one = self._workload.make_batch(1, torch.device("cpu"), generator(self._seed * 1_000_003 + index))
        return map_tensors(one, lambda tensor: tensor[0])


def pick_device(text: str, local_rank: int = 0) -> torch.device:
    """The device that ``auto``, ``cpu``, ``cuda`` or ``cuda:1`` means for this process."""
    if text == "auto":
        text = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(text)
    except RuntimeError as error:
        raise UsageError(f"device = {text!r} is not a device", expected="auto, cpu, cuda or cuda:1") from error
    if device.type == "cuda":
        index = device.index if device.index is not None else local_rank
        require_cuda(index)
        torch.cuda.set_device(index)
        return torch.device("cuda", index)
    return device


def set_switches(config: TrainConfig) -> None:
    """Puts the process's global switches in force."""
    set_fp32_precision("tf32" if config.tf32 else "ieee")
    torch.backends.cudnn.benchmark = config.cudnn_benchmark and not config.deterministic
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if config.keep_memory:
        require_kept_memory()
    if config.sdpa:
        allow_attention(config.sdpa)
    torch.use_deterministic_algorithms(config.deterministic, warn_only=False)
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses or may differ


def allow_attention(kind: str) -> None:
    """Leaves scaled-dot-product attention one implementation only, for the whole process."""
    backends = torch.backends.cuda
    backends.enable_math_sdp(kind == "math")
    backends.enable_flash_sdp(kind == "flash")
    backends.enable_mem_efficient_sdp(kind == "efficient")
    backends.enable_cudnn_sdp(kind == "cudnn")


def allowed_attention() -> list[str]:
    """The implementations that scaled-dot-product attention may use now, spelt as in an arm."""
    backends = torch.backends.cuda
    found = {
        "math": backends.math_sdp_enabled(),
        "flash": backends.flash_sdp_enabled(),
        "efficient": backends.mem_efficient_sdp_enabled(),
        "cudnn": backends.cudnn_sdp_enabled(),
    }
    return [kind for kind, on in found.items() if on]


def build(
    workload: Workload, config: TrainConfig, device: torch.device, *, team: ProcessTeam | None, say: Say
) -> Parts:
    """The parts, the same on every process of the team."""
    set_switches(config)
    seed_everything(config.seed)
    model = _placed(workload.build_model(), config, device, team)
    # A fused step asks the card itself whether gradients overflowed; any other waits for the answer in every step.
    fused = config.fused or (config.graph and config.precision == "16-mixed")
    optimizer = optimizer_of(workload, model, fused=fused)
    for group in optimizer.param_groups if config.lr is not None else []:
        group["lr"] = config.lr
    batch = config.batch or workload.default_batch
    held_out = workload.eval_data()
    loader, evaluation = _loaders(workload, config, device, batch, team, held_out)
    num_steps = min(config.epochs * loader.num_batches, config.steps or 2**62)
    mode = None if config.compile == "default" else config.compile
    ema = None
    if config.ema is not None:
        ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(config.ema), use_buffers=True)
    step = _step_kind(config, team)(
        model,
        optimizer,
        workload.loss,
        compiled=None if config.compile == "off" else torch.compile(model, mode=mode, dynamic=False),  # type: ignore[arg-type]
        micro=config.micro,
        precision=config.precision,
        clip_norm=config.clip_norm,
        separable=workload.loss_is_separable,
        recompute=config.recompute,
        regrow_after=config.regrow_after,
        graph=config.graph,
        say=say,
    )
    if team is not None and team.rank > 0 and device.type == "cuda":
        # What a model draws on its card is not tied to samples: processes must not draw the same. The host's generator
        # stays the same everywhere, since the keys of tied dropout come from it.
        torch.cuda.manual_seed(derived_seed("process", config.seed, team.rank))
    return Parts(
        workload=workload,
        device=device,
        model=model,
        optimizer=optimizer,
        schedule=Schedule(optimizer, kind=config.schedule, warmup=config.warmup, total=num_steps),
        step=step,
        ema=ema,
        loader=loader,
        evaluation=evaluation,
        held_out=held_out,
        num_steps=num_steps,
        sharded=config.fsdp,
    )


def _placed(model: nn.Module, config: TrainConfig, device: torch.device, team: ProcessTeam | None) -> nn.Module:
    if config.kernels:
        use_kernels(model)
    if config.padded:
        pad_channels(model)
    if config.shuffled:
        shuffle_blocks(model)
    if config.unbiased:
        drop_biases(model)
    if config.fsdp:
        from hotlap.engine.shard import shard_model

        assert team is not None
        return shard_model(model, device, team).train()
    model = model.to(device).train()
    return lay_out(model) if config.channels_last else model


def _step_kind(config: TrainConfig, team: ProcessTeam | None) -> Any:
    if team is None:
        return ExactStep
    if config.fsdp:
        from hotlap.engine.shard import ShardedStep

        return partial(ShardedStep, team=team)
    return partial(TeamStep, team=team, probation=config.probation)


def _check_can_be_judged(config: TrainConfig) -> None:
    """Refuses settings that wait for evaluations which will never come."""
    needs = {"patience": config.patience, "schedule": config.schedule if config.schedule == "plateau" else None}
    for name, value in needs.items():
        if value is not None:
            raise UsageError(
                f"{name} = {value!r} goes by evaluations, but the workload has no eval_data()",
                remedy=f"Give the workload eval_data(), or leave --{name} out",
            )


def _loaders(
    workload: Workload, config: TrainConfig, device: torch.device, batch: int, team: ProcessTeam | None, held_out: Any
) -> tuple[TrainLoader, TrainLoader | None]:
    data = workload.train_data()
    if data is None:
        data = DrawnSamples(workload, 16 * batch, config.seed)
    workers = config.workers or 0
    settings = LoaderSettings(
        num_workers=workers,
        prefetch_factor=max(1, config.prefetch) if workers else None,
        pin_memory=device.type == "cuda",
        persistent_workers=workers > 0,
    )
    rank, world = (team.rank, team.size) if team is not None else (0, 1)
    common: dict[str, Any] = {"seed": config.seed, "collate": workload.collate, "device": device}
    shares: dict[str, Any] = {"rank": rank, "world": world, "on_bad_sample": config.on_bad_sample}
    loader = TrainLoader(data, batch=batch, settings=settings, read_on=True, **shares, **common)
    if batch > loader.num_samples:
        raise UsageError(
            f"batch = {batch} is larger than the {loader.num_samples} samples of the training data",
            remedy="Take a smaller --batch",
        )
    if held_out is None:
        _check_can_be_judged(config)
        return loader, None
    return loader, TrainLoader(held_out, batch=batch, shuffle=False, on_bad_sample=config.on_bad_sample, **common)
