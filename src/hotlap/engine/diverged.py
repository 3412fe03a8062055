"""When a training has diverged, and must neither be logged nor, above all, saved."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from hotlap.base.errors import HotlapError
from hotlap.engine.sums import local_part


class Diverged(HotlapError):
    """The loss, or a weight, is no number any more."""


def wrong_loss(losses: Sequence[float], *, is_scaled: bool) -> str:
    """What is wrong with the losses of some steps; '' if nothing is.

    A loss scale lets single steps overflow and leaves them out, so there only all of them together tell.
    """
    wrong = [loss for loss in losses if not math.isfinite(loss)]
    allowed = max(0, len(losses) - 1) if is_scaled else 0
    return f"the loss was {wrong[0]}" if len(wrong) > allowed else ""


def wrong_weight(model: nn.Module) -> str:
    """What is wrong with a model's weights; '' if nothing is. Waits for the device once."""
    spoilt = [local_part(p.detach()).isnan().any() for p in model.parameters()]
    return "a weight was nan" if spoilt and bool(torch.stack(spoilt).any()) else ""
