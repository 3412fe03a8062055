"""Chance, fixed: one seed decides weights, inputs and dropout."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def seed_everything(seed: int) -> None:
    """Seeds Python, numpy and torch on every device."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def generator(seed: int) -> torch.Generator:
    """A CPU generator of its own, so that a batch does not depend on what was drawn before it."""
    import torch

    return torch.Generator().manual_seed(seed)
