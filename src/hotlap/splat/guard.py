"""What ends a training before its last step: numbers that are not finite, quality that falls. Both with a diagnosis."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hotlap.base.errors import HotlapError
from hotlap.splat.config import LEARNABLE, SplatTrainConfig
from hotlap.splat.state import SplatState

RECOVERY = 1000
"""Steps after a reset of the opacities in which quality is lower and no judgement counts."""
MOST_LOST = 0.01
"""A larger share of splats with numbers that are not finite is no accident any more."""
TOLD_DB = 1.0
"""A model that ends so far below the best that was judged is told of."""
HEALTH_ROWS = 10_000
"""Splats that the medians are taken of: all would take a card longer than a step."""
MOST_LOG = 700.0
"""The exponential of a larger number is none: splats that have gone wrong may be so large, or so thin."""


class Stopped(HotlapError):
    """The training was ended because going on would only make the result worse."""


class Fallen(Stopped):
    """The PSNR it is judged by fell: what was judged before is better."""


class Guard:
    """Looks after a training; ``state_dict`` goes into checkpoints."""

    def __init__(self, config: SplatTrainConfig) -> None:
        self.config = config
        self.best_psnr, self.best_step = -math.inf, 0
        self.last_reset = -RECOVERY
        self.num_lost = 0
        """Splats that were removed because a number of theirs was not finite."""

    def check_loss(self, loss: float, step: int) -> None:
        """Stops a training whose loss is no number."""
        if not math.isfinite(loss):
            raise Stopped(
                f"the loss was {loss} after {step} steps",
                remedy="Lower the rates (--lr-means, --lr-scales), or look at the pictures it stopped at",
            )

    def remove_lost(self, state: SplatState, step: int) -> int:
        """Removes splats with numbers that are not finite; how many. Waits for the device.

        They are never drawn, so nothing else is spoilt; many of them mean that the rates are too high.
        """
        lost = torch.zeros(state.count, dtype=torch.bool, device=state.device)
        for name in (*LEARNABLE, *(f"{kind}.{name}" for kind in ("first", "second") for name in state.learned)):
            lost |= ~torch.isfinite(state.alive(name).reshape(state.count, -1)).all(1)
        num = int(lost.sum())
        if not num:
            return 0
        if num > max(1, MOST_LOST * state.count) or num == state.count:
            raise Stopped(
                f"{num} of {state.count} splats had numbers that are not finite after {step} steps",
                remedy="Lower the rates (--lr-means, --lr-scales)",
            )
        state.flush()
        state.take((~lost).nonzero()[:, 0])
        self.num_lost += num
        return num

    def check_psnr(self, value: float, step: int) -> None:
        """Stops a training whose PSNR, held out, has fallen too far below its best."""
        drop = self.config.abort_psnr_drop
        if step - self.last_reset < RECOVERY:
            return
        if drop and self.best_psnr - value > drop:
            raise Fallen(
                f"the {self.config.judged_psnr} fell to {value:.2f} dB at step {step}, "
                f"{self.best_psnr - value:.2f} dB below its best at step {self.best_step} (abort_psnr_drop = {drop:g})",
                remedy="Lower the rates or stop densifying earlier (--densify-until)",
            )
        if value > self.best_psnr:
            self.best_psnr, self.best_step = value, step

    def told_of_end(self, value: float, step: int) -> str:
        """What to know of a training that was better before its end; '' where it was not, or not by much."""
        higher = self.best_psnr - value
        if higher < TOLD_DB or step - self.last_reset < RECOVERY:
            return ""
        return (
            f"the {self.config.judged_psnr} was {higher:.2f} dB higher at step {self.best_step}; "
            f"--abort-psnr-drop {TOLD_DB:g} would have ended the training with that model"
        )

    def state_dict(self) -> dict[str, float | int]:
        return {name: getattr(self, name) for name in ("best_psnr", "best_step", "last_reset", "num_lost")}

    def load_state_dict(self, state: dict[str, float | int]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


def health(state: SplatState) -> dict[str, float]:
    """How the splats are, in a few numbers: needles, faint ones and giants show here first. Waits for the device."""
    if not state.count:
        return {"opacity_median": 0.0, "anisotropy_median": 1.0, "scale_median": 0.0}
    every = max(1, state.count // HEALTH_ROWS)
    return medians(state.alive("scales")[::every], state.alive("opacities")[::every])


def medians(scales: Tensor, opacities: Tensor) -> dict[str, float]:  # [N, 3] logarithms, [N] logits
    """The median splat's opacity, extent and shape; all are numbers that JSON has."""
    spread = scales.amax(1) - scales.amin(1)
    middle = torch.stack([torch.sigmoid(opacities).median(), spread.median(), scales.median()])
    opacity, needle, scale = middle.tolist()
    return {
        "opacity_median": opacity, "anisotropy_median": math.exp(min(needle, MOST_LOG)),
        "scale_median": math.exp(min(scale, MOST_LOG)),
    }  # fmt: skip
