"""What a profile can be told."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hotlap.base.errors import ConfigError
from hotlap.base.settings import require_least


@dataclass(frozen=True, kw_only=True)
class ProfileConfig:
    """Traces a few steps of one arm and says where their time went; or reads traces that are there already."""

    target: str = ""
    """Registered name, module:factory or file.py:factory; not needed with --trace."""
    mode: Literal["train", "infer"] = "train"
    """A training step (forward, backward, optimizer) or a forward pass."""
    arm: str = ""
    """How the model runs, as cpu or cuda:bf16+channels_last; by default cuda where there is one, else cpu."""
    batch: int | None = None
    """Samples a step; by default the workload's own."""
    steps: int = 5
    """Steps to trace, after the warm-up."""
    warmup_seconds: float = 10.0
    """The warm-up ends here even if the step's times are not steady."""
    detail: bool = True
    """Also take a second, slower trace with stacks and memory: source lines of syncs, the owners of the peak."""
    trace: tuple[str, ...] = ()
    """Traces to read instead of making one: .json or .json.gz files of torch.profiler, one a rank, or their folder."""
    diff: tuple[str, ...] = ()
    """Two profiles to compare, before and after: records, names of runs, or traces."""
    ceilings: Path | None = None
    """File of measured ceilings for the roofline; by default the doctor's for this device and torch."""
    check_advice: bool = False
    """Time the first three arms that are advised against this one, and set the result beside the estimate."""
    input: tuple[str, ...] = ()
    """Shape of each input of a plain nn.Module, without the batch."""
    workload: dict[str, Any] = field(default_factory=dict)
    """Options of the target's factory, as --set workload.size=64."""
    seed: int = 0
    """Decides weights and inputs."""
    timeout_s: float = 900.0
    """Longest life of one measuring process."""
    runs: Path = Path("runs")
    """Where records and traces go."""
    name: str | None = None
    """Name of the run; by default the target's with -profile."""

    def __post_init__(self) -> None:
        require_least(self, steps=1, batch=1)
        for key in ("timeout_s", "warmup_seconds"):
            if not 0 < getattr(self, key) < math.inf:
                raise ConfigError(f"{key} = {getattr(self, key)} is out of range", expected="above 0, and finite")
        if self.diff:
            if len(self.pair) != 2:
                raise ConfigError(f"diff = {list(self.diff)} names {len(self.pair)}", expected="two, as --diff A B")
            if self.trace:
                raise ConfigError("diff and trace were both given", expected="one of them; --diff takes traces itself")
        elif not self.target and not self.trace:
            raise ConfigError(
                "no target given",
                expected="a name of 'hotlap list', module:factory or file.py:factory",
                remedy="Or give --trace FILE or --diff A B",
            )
        if self.check_advice and not self.target:
            raise ConfigError("check_advice = True needs a target", remedy="A trace alone cannot be run again")

    @property
    def pair(self) -> tuple[str, ...]:
        """What to compare; of ``--diff A B`` the parser takes B for the target."""
        return (*self.diff, self.target) if len(self.diff) == 1 and self.target else self.diff
