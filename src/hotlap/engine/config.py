"""What a training can be told."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hotlap.base.errors import ConfigError, RecordError
from hotlap.base.settings import Layer, require_least
from hotlap.records.run import RunRecord, find_runs, is_called, load_record, record_at

CHECKPOINTS = "checkpoints"
"""The folder, in a run's, that holds its checkpoints."""
STOPPED_AT_ONCE = "Stopped at once; --resume goes on from the last checkpoint."
"""What is said of a training that had no time to save itself."""
Precision = Literal["32-true", "bf16-mixed", "16-mixed"]
RECORDS_ITSELF = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile with CUDA graphs of their own."""


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
    kernels: bool = False
    """Layers by Hotlap's own kernels, where the model has them."""
    padded: bool = False
    """Convolutions of few channels computed with zeros added, up to a multiple of eight, as tensor cores want them."""
    shuffled: bool = False
    """Transposed convolutions that do not overlap computed as one matrix product."""
    unbiased: bool = False
    """Biases left out that the BatchNorm behind a convolution takes away again."""
    graph: bool = False
    """Records the passes over micro-batches as CUDA graphs and replays them; says why, if the model cannot be."""
    fused: bool = False
    """The optimizer's fused implementation, where it has one."""
    cudnn_benchmark: bool = True
    """Lets cuDNN time its algorithms; --deterministic switches it off."""
    sdpa: Literal["", "math", "flash", "efficient", "cudnn"] = ""
    """The only implementation attention may use; by default torch chooses."""
    threads: int | None = None
    """CPU threads; by default torch's own choice."""
    keep_memory: bool = False
    """On a CPU, keeps freed memory for the next tensors: to take it anew from the system may cost as much as a step."""
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
    goal: Literal["auto", "min", "max"] = "auto"
    """Whether a smaller or a larger figure is better; auto: the smallest loss, the largest of anything else."""
    patience: int | None = None
    """Stops after so many evaluations without a better one."""
    workers: int | None = None
    """Processes that load samples; by default as many as the first steps show to be needed, often none."""
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
    resume: str = field(default="", metadata={"bare": "latest"})
    """Goes on with an earlier run: latest (also without a value), its name, its folder, or a checkpoint file."""
    restarts: int = 5
    """How often a run that was killed (a worker, or the process itself) is started again from its last checkpoint."""
    nproc: int = 1
    """Processes on this machine, one a GPU, started through torchrun."""
    probation: int = 50
    """With several processes: steps after a start or a new split in which all vote before they share gradients; later
    ones share them during the backward pass, where only a new start helps against memory shortage."""
    timeout_s: float = 600.0
    """Seconds that processes wait for one another before they give up."""
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
        record = find_training(self.resume, self.runs, self.target)
        kept = {key: value for key, value in record.config.items() if key not in ("resume", "runs", "nproc")}
        return [Layer(f"the run resumed ({record.path})", {k: v for k, v in kept.items() if v is not None})]

    def __post_init__(self) -> None:
        require_least(self, epochs=1, keep=1, log_every=1, nproc=1, regrow_after=1)
        require_least(self, steps=1, batch=1, micro=1, save_every=1, patience=1, threads=1)
        require_least(self, warmup=0, restarts=0, eval_every=0, prefetch=0, probation=0, workers=0, save_every_s=0)
        if self.ema is not None and not 0 < self.ema < 1:
            raise ConfigError(f"ema = {self.ema}", expected="a decay between 0 and 1, such as 0.999")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigError(f"clip_norm = {self.clip_norm}", expected="a positive length")
        for name, plain in (("ema", None), ("channels_last", False)):
            if self.fsdp and getattr(self, name) != plain:
                raise ConfigError(f"{name} = {getattr(self, name)} with fsdp = True", expected="one of the two")
        if self.fsdp and self.precision == "16-mixed":
            raise ConfigError("precision = '16-mixed' with fsdp = True", expected="bf16-mixed or 32-true")
        if self.graph and self.compile in RECORDS_ITSELF:
            raise ConfigError(
                f"graph = True with compile = {self.compile!r}, which records graphs itself",
                expected="one of the two, or compile = 'default' with graph",
            )
        if not self.timeout_s > 0:
            raise ConfigError(f"timeout_s = {self.timeout_s}", expected="a positive number of seconds")
        if self.lr is not None and not 0 < self.lr < math.inf:
            raise ConfigError(f"lr = {self.lr}", expected="a positive number")
        judged = {"schedule = 'plateau'": self.schedule == "plateau", f"patience = {self.patience}": self.patience}
        for what, is_on in judged.items():
            if is_on and self.eval_every == 0:
                raise ConfigError(f"{what} with eval_every = 0", expected="evaluations to judge by")


def find_training(text: str, runs: Path, target: str = "") -> RunRecord:
    """The record of the training that ``text`` names: latest (of ``target``, if given), a run, or a checkpoint file."""
    path = Path(text)
    if path.is_file() and path.parent.name == CHECKPOINTS:
        record = load_record(path.parent.parent)
    elif (there := record_at(path)) is not None:
        record = load_record(there)
    else:
        return _search(text, runs, target)
    if record.kind != "train":
        raise ConfigError(f"resume = {text!r} is the record of a {record.kind}", expected="that of a training")
    if target and record.config.get("target") != target:
        raise ConfigError(
            f"target = {target!r}, but the run to resume ({record.path}) trains {record.config.get('target')!r}",
            remedy="Leave the target out",
        )
    return record


def _search(text: str, runs: Path, target: str) -> RunRecord:
    for file in find_runs(runs):
        if text != "latest" and not is_called(text, file):
            continue
        try:
            record = load_record(file)
        except RecordError:
            continue  # one that is whole may come after it
        if record.kind == "train" and target in ("", record.config.get("target")):
            return record
    of_target = f" of {target!r}" if target else ""
    raise ConfigError(
        f"resume = {text!r}: there is no such training{of_target} under {str(runs)!r}",
        expected="latest, a run's name, name/timestamp or folder, or a checkpoint file",
        remedy="'hotlap list runs' shows the runs that are here",
    )
