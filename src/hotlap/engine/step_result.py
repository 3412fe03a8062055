"""What a training step gives back."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What one step did."""

    loss: Tensor
    """Mean over the effective batch, detached, on the device; reading it waits for the step."""
    count: Tensor | int
    """What the summed loss was divided by."""
    num_samples: int
    micro: int
    """Most samples of a micro-batch in the attempt that went through."""
    num_micro: int
    num_splits: int = 0
    """Times memory ran out in this step."""
    recovery_s: float = 0.0
    """From the first failure to the beginning of the attempt that went through."""
    grad_norm: Tensor | None = None
