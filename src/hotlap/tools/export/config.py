"""What an export can be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotlap.base.errors import ConfigError, did_you_mean
from hotlap.base.settings import Layer, require_least
from hotlap.measure.arms import FORMS

QUICK = Layer(
    "--quick",
    {"processes": 3, "repeats": 10, "seconds": 0.3, "max_seconds": 1.5, "warmup_seconds": 1.0, "gate_batch": 2},
)
QUICK_GIVES_UP = (
    "--quick gives up: three processes instead of eight, so differences under 10% are never named and there is no "
    "p-value; a shorter gate and warm-up."
)
"""Where forms are timed; else it costs two samples of the gate."""


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Writes a model in forms for use without its source, each read back, held to the numeric gate and timed."""

    target: str = ""
    """Registered name, module:factory or file.py:factory."""
    out: Path | None = None
    """The folder to write: the forms, manifest.json and README.md. An earlier export in it is replaced as a whole."""
    formats: tuple[str, ...] = tuple(FORMS)
    """Forms to make: exported (torch.export), aoti (AOTInductor), onnx, torchscript."""
    arm: str = ""
    """Device, precision and layout, as cuda:bf16+channels_last; by default the tuned profile's for inference, else the
    GPU where there is one."""
    tuned: bool = True
    """Looks for a tuned profile when no arm is given."""
    batch: int | None = None
    """Samples a step, for compiling and timing; by default the profile's, else the workload's own."""
    dynamic_batch: bool = True
    """Forms that take any number of samples; --no-dynamic-batch fixes it to the batch."""
    weights: Path | None = None
    """Trained weights: a checkpoint of 'hotlap train', a state dict or a .safetensors file; fresh ones by default."""
    time: bool = True
    """Time the forms against the model itself, in fresh processes."""
    input: tuple[str, ...] = ()
    """Shape of each input of a plain nn.Module, without the batch: 3x224x224, or 128:int64:32000 for token ids."""
    workload: dict[str, Any] = field(default_factory=dict)
    """Options of the target's factory, as --set workload.size=64."""
    gate_batch: int = 4
    """Samples in the gate's batch; never more than the batch itself. A fixed batch is checked as it is."""
    processes: int = 8
    """Fresh processes, the unit of replication; each times every form."""
    repeats: int = 30
    """Timed iterations of each form in each process, at least."""
    seconds: float = 1.0
    """Timed seconds of each form in each process, at least."""
    max_seconds: float = 20.0
    """Timed seconds of each form in each process, at most."""
    warmup_seconds: float = 20.0
    """Warm-up of each form ends here even if its times are not steady."""
    min_effect: float = 0.01
    """Differences below this fraction are never named."""
    quick: bool = False
    """A first answer: fewer processes and iterations."""
    seed: int = 0
    """Decides inputs, and weights where none are given."""
    timeout_s: float = 1800.0
    """Longest life of one process; compiling a large model takes minutes."""
    runs: Path = Path("runs")
    """Where records go."""
    name: str | None = None
    """Name of the run; by default the target's with -export."""

    def __post_init__(self) -> None:
        if not self.target:
            raise ConfigError("no target given", expected="a name of 'hotlap list', module:factory or file.py:factory")
        unknown = next((form for form in self.formats if form not in FORMS), None)
        if unknown is not None:
            raise ConfigError(f"formats has {unknown!r}, which is no form", remedy=did_you_mean(unknown, FORMS))
        if not self.formats or len(set(self.formats)) < len(self.formats):
            raise ConfigError(f"formats = {list(self.formats)} is not valid", expected="each form once, at least one")
        require_least(self, batch=1, gate_batch=1, processes=1, repeats=1)
        require_least(self, seconds=0, max_seconds=0, warmup_seconds=0, timeout_s=0, min_effect=0)

    @property
    def folder(self) -> Path:
        """Where the export goes; asked for by name, since it may replace what is there."""
        if self.out is None:
            raise ConfigError("out is not given", expected="the folder to write, as --out deploy/")
        return self.out

    def presets(self) -> list[Layer]:
        """The settings that --quick brings in."""
        return [QUICK] if self.quick else []
