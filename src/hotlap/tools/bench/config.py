"""What a bench can be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hotlap.base.errors import ConfigError
from hotlap.base.settings import Layer, require_least

SELF_TEST = Layer(
    "--self-test",
    {
        "target": "bilstm",
        "batch": 8,
        "workload": {"hidden": 16, "length": 32, "embedding": 16},
        "warmup_seconds": 0.5,
    },
)
QUICK = Layer(
    "--quick",
    {
        "processes": 3,
        "repeats": 10,
        "seconds": 0.3,
        "max_seconds": 1.5,
        "warmup_seconds": 1.0,
        "step_seconds": 0.8,
        "memory": False,
        "gate_batch": 2,
        "gate_steps": 2,
        "context": False,
        "break_even": False,
    },
)
QUICK_GIVES_UP = {
    "processes": "three processes instead of eight, so differences under 10% are never named and there is no p-value",
    "warmup_seconds": "a shorter gate and warm-up",
    "memory": "no peak memory",
    "context": "no race for the tuned CPU settings, no single-thread context",
    "break_even": "no break-even batch",
    "step_seconds": "where no batch is given and steps are long, a smaller batch",
}
"""What it costs, by the setting that costs it."""


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """Times a target on several arms, in fresh processes, under a numeric gate."""

    target: str = ""
    """Registered name, module:factory or file.py:factory; --self-test may go without and takes a small bilstm."""
    arms: tuple[str, ...] = ()
    """Ways to run it, as cpu,cuda:bf16+channels_last+compile; the first is the baseline. By default the tuned CPU
    against the GPU, or plain against tuned CPU settings where there is no GPU; and the arm of the tuned profile, if
    'hotlap tune' has stored one that holds. It is spelt tuned-profile; alone it is set against the plain device."""
    tuned: bool = True
    """Looks for a tuned profile when no arms are given."""
    mode: Literal["train", "infer"] = "train"
    """A whole training step, or a forward pass."""
    batch: int | None = None
    """Samples a step; by default the workload's own."""
    input: tuple[str, ...] = ()
    """Shape of each input of a plain nn.Module, without the batch: 3x224x224, or 128:int64:32000 for token ids."""
    workload: dict[str, Any] = field(default_factory=dict)
    """Options of the target's factory, as --set workload.size=64."""
    processes: int = 8
    """Fresh processes, the unit of replication; each times every arm."""
    repeats: int = 30
    """Timed iterations of each arm in each process, at least."""
    seconds: float = 1.0
    """Timed seconds of each arm in each process, at least."""
    max_seconds: float = 10.0
    """Timed seconds of each arm in each process, at most; long steps get fewer iterations, and the record says so."""
    warmup_seconds: float = 10.0
    """Warm-up of each arm ends here even if its times are not steady."""
    step_seconds: float | None = None
    """Halves the workload's own batch until a step of every arm takes about this long in all, by the gate's steps; a
    batch that is given is kept."""
    min_effect: float = 0.01
    """Differences below this fraction are never named."""
    gate: bool = True
    """Check outputs, gradients, losses and the task metric against float64 before any speed-up is printed."""
    gate_batch: int = 4
    """Samples in the gate's batch; never more than the batch itself."""
    gate_steps: int = 5
    """Training steps whose losses the gate compares."""
    memory: bool = True
    """Run each arm alone in a process, on its worst-case batch, for its peak memory."""
    transfer: bool = True
    """Also time GPU arms from host memory to host memory."""
    context: bool = True
    """When CPU and GPU arms meet, also show the tuned CPU and a single thread, timed with fewer samples."""
    break_even: bool = True
    """When CPU and GPU arms meet, find the batch from which the GPU wins, copies included."""
    lock_clocks_mhz: int | None = None
    """Lock the GPU's clock while timing; needs privilege, and is undone at the end whatever happens."""
    quick: bool = False
    """An answer in about a minute: fewer processes and iterations, no context arms, no break-even."""
    self_test: bool = False
    """Time A against A instead, and report how often this machine makes the bench see a difference."""
    seed: int = 0
    """Decides weights and inputs."""
    timeout_s: float = 900.0
    """Longest life of one measuring process."""
    runs: Path = Path("runs")
    """Where records go."""
    name: str | None = None
    """Name of the run; by default the target's."""

    def __post_init__(self) -> None:
        if not self.target and not self.self_test:
            raise ConfigError("no target given", expected="a name of 'hotlap list', module:factory or file.py:factory")
        require_least(self, batch=1, processes=1, repeats=1, gate_batch=1, gate_steps=1, lock_clocks_mhz=1)
        require_least(self, seconds=0, max_seconds=0, warmup_seconds=0, step_seconds=0, timeout_s=0, min_effect=0)

    def given_up(self) -> list[str]:
        """What --quick costs, without what was asked for all the same."""
        kept = [text for key, text in QUICK_GIVES_UP.items() if getattr(self, key) == QUICK.values[key]]
        return [f"--quick gives up: {'; '.join(kept)}."] if self.quick and kept else []

    def presets(self) -> list[Layer]:
        """The settings that --quick, and --self-test without a target, bring in."""
        own = [SELF_TEST] if self.self_test and not self.target else []
        return own + ([QUICK] if self.quick else [])
