"""The doctor's settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """What the doctor looks at, and how long it waits."""

    measure: bool = False
    """Also measure ceilings (copy bandwidth, matmul for each dtype, host-device transfer) and cache them."""
    only: tuple[str, ...] = ()
    """Names of checks or groups to run, with what they need; empty runs all."""
    fix_script: bool = False
    """Print the shell commands that would mend this machine, to read and run yourself; nothing is run."""
    timeout_s: float = 60.0
    """Time limit of one probe; probes that compile get three times as much."""
    runs: Path = Path("runs")
    """Where the record goes, under doctor/<timestamp>."""
    side_by_side: int = 2
    """Processor probes that run at a time; probes of the card and measurements always run one by one."""
