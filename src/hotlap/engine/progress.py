"""Where a training stands, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Progress:
    """Where a training stands; part of every checkpoint."""

    step: int = 0
    epoch: int = 0
    """Epochs that are done, their evaluation included."""
    position: int = 0
    """Batches of the next epoch that are done."""
    best: float | None = None
    stale: int = 0
    """Evaluations since the best one."""
    evaluated_step: int = -1
    """The step of the last evaluation."""
    num_splits: int = 0
    recovery_s: float = 0.0
    """Of all times that memory ran out, the longest until the step went on."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a training ended."""

    status: str
    """complete or interrupted."""
    step: int
    epoch: int
    resumed_from: int | None = None
    """The step of the checkpoint it went on from."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The last evaluation."""
    best: float | None = None
    best_checkpoint: str = ""
    last_checkpoint: str = ""
    samples_per_s: float | None = None
    micro: int | None = None
    workers: int = 0
    """Of the loader, at the end."""
    num_splits: int = 0
    recovery_s: float = 0.0
    recomputing: bool = False
    num_replays: int = 0
    """Passes that were replays of recorded ones."""
    num_bad_samples: int = 0
    peak_bytes: int | None = None
    """Of the device's memory; None on a CPU."""
    host_peak_bytes: int = 0
    warnings: tuple[str, ...] = ()
