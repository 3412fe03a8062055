"""What ``tuned_speed`` tries: for each group the two baselines and the forms, the likeliest to win first."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cell:
    """One arm at one batch, with settings of torch's compiler that no arm spells."""

    arm: str
    batch: int
    env: str = ""
    """A name of ENVIRONMENTS; '' for torch's own settings."""

    def __str__(self) -> str:
        return f"{self.arm} at batch {self.batch}" + (f" with {self.env}" if self.env else "")


@dataclass(frozen=True)
class Group:
    """One workload in one mode. Forms are compared with the baselines by samples a second."""

    target: str
    mode: str
    baselines: tuple[Cell, ...]
    """True float32 first, then what is nearer to torch's default."""
    cells: tuple[Cell, ...]
    asked: float
    """Times the samples a second of each baseline that the best form shall reach."""
    fixed: tuple[Cell, ...] = ()
    """Forms that are run whatever their rank, because something is asked of them at their batch."""
    asked_fixed: float = 0.0
    """Times the samples a second of each baseline that these shall reach."""
    options: dict[str, int] = field(default_factory=dict)


ENVIRONMENTS = {
    "": {},
    "tuned pointwise": {"TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE": "1", "TORCHINDUCTOR_COORDINATE_DESCENT_TUNING": "1"},
}
"""Kernels of norms and activations timed by the compiler; convolutions stay cuDNN's."""
INFER = "cuda:fp16+channels_last+graph"
TRAIN = "cuda:fp16+channels_last+fused+graph"
BEST_INFER = "cudnn_benchmark+folded+shuffled"
BEST_TRAIN = "cudnn_benchmark+shuffled+unbiased"
"""Padded channels made unet slower on an H200, by 8% in inference and 1% in training, at a first look."""


def both(batch: int) -> tuple[Cell, ...]:
    return Cell("cuda", batch), Cell("cuda:tf32", batch)


def cells(arm: str, *forms: tuple[str, int]) -> tuple[Cell, ...]:
    return tuple(Cell(f"{arm}+{more}" if more else arm, batch) for more, batch in forms)


UNET_INFER = (
    *cells(INFER, (f"{BEST_INFER}+compile", 256), (BEST_INFER, 256), ("compile+cudnn_benchmark", 256)),
    *cells(INFER, (f"{BEST_INFER}+compile", 128), (BEST_INFER, 128), (f"{BEST_INFER}+compile", 64)),
    *cells("cuda:bf16+channels_last+graph", (f"{BEST_INFER}+compile", 256), ("compile", 64)),
    Cell(f"{INFER}+{BEST_INFER}+compile", 256, "tuned pointwise"),
    *cells(INFER, (f"{BEST_INFER}+padded", 256), ("cudnn_benchmark+folded", 256), ("cudnn_benchmark", 256)),
    *cells(INFER, (f"{BEST_INFER}+compile=max-autotune-no-cudagraphs", 256)),
)
UNET_TRAIN = (
    *cells(TRAIN, (f"{BEST_TRAIN}+compile", 256), (BEST_TRAIN, 256), ("cudnn_benchmark+shuffled+compile", 256)),
    *cells(TRAIN, ("compile+cudnn_benchmark", 256), (f"{BEST_TRAIN}+compile", 128)),
    *cells("cuda:bf16+channels_last+fused+graph", (f"{BEST_TRAIN}+compile", 256), ("compile", 64)),
    Cell(f"{TRAIN}+{BEST_TRAIN}+compile", 256, "tuned pointwise"),
    *cells(TRAIN, ("cudnn_benchmark", 256), (f"{BEST_TRAIN}+padded", 256)),
    *cells(TRAIN, (f"{BEST_TRAIN}+compile", 64), (f"{BEST_TRAIN}+compile=max-autotune-no-cudagraphs", 256)),
)
GROUPS = {
    "unet-infer": Group("unet", "infer", both(16), UNET_INFER, 5.0),
    "unet-train": Group("unet", "train", both(16), UNET_TRAIN, 5.0, cells(TRAIN, (f"{BEST_TRAIN}+compile", 16)), 3.0),
    "bilstm-train": Group(
        "bilstm", "train", both(64), (Cell("cuda:fp16+fused+graph+kernels", 64), Cell("cuda:fp16+graph", 64)), 5.0
    ),
    "small": Group(
        "unet", "infer", (Cell("cpu", 4), Cell("cpu:channels_last", 4)),
        cells("cpu:channels_last", ("folded+shuffled", 4), ("folded", 8), ("compile+folded+shuffled", 8)), 1.0,
        cells("cpu:channels_last", ("folded", 4)), 0.5, {"width": 8, "size": 32},
    ),
}  # fmt: skip
"""``small`` is for two cores, to try the script itself."""
