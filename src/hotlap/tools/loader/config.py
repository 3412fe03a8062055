"""What the choice of loader settings can be told."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hotlap.base.errors import ConfigError
from hotlap.base.settings import require_least


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """Measures the loader against the model's step and picks the smallest settings that keep up."""

    target: str = ""
    """Registered name, module:factory or file.py:factory; its train_data() is what is loaded."""
    arm: str = ""
    """How the model runs, as cpu or cuda:bf16+channels_last; by default cuda where there is one, else cpu."""
    batch: int | None = None
    """Samples a step; by default the workload's own."""
    step_ms: float | None = None
    """Milliseconds of one training step; measured when not given."""
    workers: tuple[int, ...] = ()
    """Numbers of workers to try, as 0,2,4; by default 0, 1, 2, 3, 4, 6, 8, ... up to the CPUs that can be used."""
    prefetch: tuple[int, ...] = (2, 4)
    """Batches ahead for each worker to try."""
    headroom: float = 1.2
    """Times the model's consumption that workers must deliver."""
    full: bool = False
    """Measure every setting instead of only those around the fewest workers that keep up."""
    on_bad_sample: Literal["raise", "skip"] = "raise"
    """Stop at a sample that cannot be read, or go on without it."""
    seconds: float = 0.3
    """Length of each of the five windows in which a setting's rate is taken; two do where they leave no doubt."""
    input: tuple[str, ...] = ()
    """Shape of each input of a plain nn.Module, without the batch."""
    workload: dict[str, Any] = field(default_factory=dict)
    """Options of the target's factory, as --set workload.size=64."""
    seed: int = 0
    """Decides weights, order and augmentation."""
    timeout_s: float = 600.0
    """Longest life of one measuring process."""
    runs: Path = Path("runs")
    """Where records go."""
    name: str | None = None
    """Name of the run; by default the target's with -loader."""

    def __post_init__(self) -> None:
        if not self.target:
            raise ConfigError("no target given", expected="a name of 'hotlap list', module:factory or file.py:factory")
        require_least(self, batch=1)
        if any(count < 0 for count in self.workers):
            raise ConfigError(f"workers = {min(self.workers)} is negative", expected="0 or more")
        if not self.prefetch or min(self.prefetch) < 1:
            raise ConfigError(f"prefetch = {self.prefetch} is too small", expected="one or more, each at least 1")
        for key, low in (("step_ms", 0.0), ("seconds", 0.0), ("timeout_s", 0.0), ("headroom", 1.0)):
            value = getattr(self, key)
            if value is not None and not (low < value < math.inf or value == low == 1.0):
                raise ConfigError(f"{key} = {value} is out of range", expected=f"above {low:g}, and finite")
