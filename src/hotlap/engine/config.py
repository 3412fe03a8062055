"""What a training can be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hotlap.base.errors import ConfigError
from hotlap.base.settings import Layer
from hotlap.records.run import load_record, resolve_run

CHECKPOINTS = "checkpoints"
"""The folder, in a run's, that holds its checkpoints."""
Precision = Literal["32-true", "bf16-mixed", "16-mixed"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Trains a target: exact effective batches, recovery from memory shortage, checkpoints that can be resumed."""

    target: str = ""
    """Registered name, module:factory or file.py:factory; --resume takes it from the run that goes on."""
    epochs: int = 10
    """Rounds through the training data."""
    steps: int | None = None
    """Ends after so many optimizer steps, if the epochs have not ended before."""
    batch: int | None = None
    """Samples of one effective batch, over all processes; by default the workload's own."""
    micro: int | None = None
    """Samples on the device at once; by default the whole batch, and less only when memory runs out."""
    input: tuple[str, ...] = ()
    """Shape of each input of a plain nn.Module, without the batch: 3x224x224, or 128:int64:32000 for token ids."""
    workload: dict[str, Any] = field(default_factory=dict)
    """Options of the target's factory, as --set workload.size=64."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:1."""
    precision: Precision = "32-true"
    """32-true, bf16-mixed or 16-mixed (with a loss scale)."""
    tf32: bool = False
    """Lets float32 products and convolutions use TF32; set explicitly both ways."""
    compile: Literal["off", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = "off"
    """torch.compile and its mode."""
    channels_last: bool = False
    """Images and convolutions in NHWC order."""
    fused: bool = False
    """The optimizer's fused implementation, where it has one."""
    cudnn_benchmark: bool = True
    """Lets cuDNN time its algorithms; --deterministic switches it off."""
    sdpa: Literal["", "math", "flash", "efficient", "cudnn"] = ""
    """The only implementation attention may use; by default torch chooses."""
    threads: int | None = None
    """CPU threads; by default torch's own choice."""
    tuned: bool = True
    """Takes what is not set here from the target's tuned profile, if 'hotlap tune' has stored one that holds."""
    lr: float | None = None
    """Learning rate; by default the workload's own."""
    schedule: Literal["constant", "cosine", "plateau"] = "constant"
    """How the learning rate goes on after the warm-up; plateau divides it by 10 when the monitored score stalls."""
    warmup: int = 0
    """Steps over which the learning rate rises from 0."""
    clip_norm: float | None = None
    """Gradients longer than this are shortened to it."""
    ema: float | None = None
    """Decay of an average of the weights, such as 0.999, which is then what is evaluated."""
    eval_every: int = 1
    """Epochs between evaluations; 0 evaluates only at the end."""
    monitor: str = "loss"
    """The evaluation's figure that decides which checkpoint is best: loss, or a metric's name."""
    patience: int | None = None
    """Stops after so many evaluations without a better one."""
    workers: int | None = None
    """Processes that load samples; by default measured against the model's step (0 to begin with a small data set)."""
    prefetch: int = 2
    """Batches each of them reads ahead."""
    on_bad_sample: Literal["raise", "skip"] = "raise"
    """What to do about a sample that cannot be read; those skipped are listed in bad_samples.txt."""
    recompute: Literal["auto", "on", "off"] = "auto"
    """Activation checkpointing: auto switches it on as the last step before giving up for memory."""
    regrow_after: int = 200
    """Quiet steps after which a larger micro-batch is tried again."""
    seed: int = 0
    """Decides weights, order, augmentation and dropout."""
    deterministic: bool = False
    """Only algorithms that repeat bit for bit, also on a GPU; slower there."""
    save_every_s: float = 300.0
    """Seconds between checkpoints; one is also saved at each better evaluation, on Ctrl-C and at the end."""
    save_every: int | None = None
    """Steps between checkpoints, in place of seconds."""
    keep: int = 3
    """Checkpoints kept beside the best."""
    log_every: int = 10
    """Steps between rows of metrics."""
    tensorboard: bool = False
    """Also writes TensorBoard scalars."""
    resume: str = ""
    """Goes on with an earlier run: latest, its name, its folder, or a checkpoint file."""
    restarts: int = 5
    """How often a run that was killed (a worker, or the process itself) is started again from its last checkpoint."""
    nproc: int = 1
    """Processes on this machine, one a GPU, started through torchrun."""
    fsdp: bool = False
    """Shards weights, gradients and optimizer state over the processes, for models that do not fit."""
    name: str = ""
    """Name of the run; by default the target's."""
    runs: Path = Path("runs")
    """Where records and checkpoints are written."""

    def presets(self) -> list[Layer]:
        """The settings of the run to resume, just above the defaults."""
        if not self.resume:
            return []
        record = load_record(find_run(self.resume, self.runs))
        kept = {key: value for key, value in record.config.items() if key not in ("resume", "runs", "nproc")}
        return [Layer(f"the run resumed ({record.path})", {k: v for k, v in kept.items() if v is not None})]

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("keep", 1), ("log_every", 1), ("nproc", 1), ("regrow_after", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} = {getattr(self, name)}", expected=f"at least {least}")
        for name in ("steps", "batch", "micro", "save_every", "patience", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} = {value}", expected="at least 1, or none")
        for name in ("warmup", "restarts", "eval_every", "prefetch"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} = {getattr(self, name)}", expected="0 or more")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ConfigError(f"ema = {self.ema}", expected="a decay between 0 and 1, such as 0.999")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise ConfigError(f"clip_norm = {self.clip_norm}", expected="a positive length")
        if self.lr is not None and self.lr <= 0:
            raise ConfigError(f"lr = {self.lr}", expected="a positive number")
        if self.schedule == "plateau" and self.eval_every == 0:
            raise ConfigError("schedule = 'plateau' with eval_every = 0", expected="evaluations to judge by")


def find_run(text: str, runs: Path) -> Path:
    """The folder of the training that ``text`` names: a run, or one of its checkpoint files."""
    path = Path(text)
    if path.is_file() and path.parent.name == CHECKPOINTS:
        return path.parent.parent
    if text == "latest":
        text = _latest_training(runs)
    found = resolve_run(text, runs)
    return found if found.is_dir() else found.parent


def _latest_training(runs: Path) -> str:
    folders = sorted((p.parent for p in runs.glob(f"*/*/{CHECKPOINTS}")), key=lambda p: (p.name, p.parent.name))
    if not folders:
        raise ConfigError(f"resume = 'latest', but no training under {str(runs)!r} has checkpoints")
    return str(folders[-1])
