"""From a crop's bytes to what the network sees: turned, mirrored, recoloured, where the batch is.

What is random is decided for each crop by itself, before, and travels with it; so a crop comes out the same in whatever
batch it is, and a batch may be split.
"""

from __future__ import annotations

import torch
from torch import Tensor

NUM_TURNS = 8
"""Quarter turns, with and without a mirror."""
NUM_COLOURS = 6
"""Draws in [0, 1) that decide a crop's colours: brightness, contrast, gamma and a gain for each channel."""
CHANGE = 0.25
GAMMA = 0.4
GAIN = 0.15


def turned(pixels: Tensor, turn: Tensor) -> Tensor:  # [n, C, s, s], [n] in 0..7
    """Each square mirrored left to right, top to bottom and across, as the three bits of its turn say."""
    bit = turn[:, None, None, None]
    pixels = torch.where((bit & 1) > 0, pixels.flip(-1), pixels)
    pixels = torch.where((bit & 2) > 0, pixels.flip(-2), pixels)
    return torch.where((bit & 4) > 0, pixels.transpose(-1, -2), pixels)


def recoloured(image: Tensor, colour: Tensor) -> Tensor:  # [n, 3, s, s] in [0, 1], [n, 6] in [0, 1)
    """Images of other brightness, contrast, gamma and balance of the channels."""
    brightness, contrast, gamma = (2.0 * colour[:, k, None, None, None] - 1.0 for k in range(3))
    gain = 1.0 + GAIN * (2.0 * colour[:, 3:, None, None] - 1.0)
    changed = image * gain * (1.0 + 2 * CHANGE * contrast) + CHANGE / 2 * brightness
    return changed.clamp(0.0, 1.0) ** torch.exp(GAMMA * gamma)
