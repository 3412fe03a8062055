"""Random numbers that depend only on a seed, an index and a slot, so that item i is the same in any batch, anywhere.

A generator with a state would make an item depend on what was drawn before it. Here each number is a hash of its
coordinates, in 64-bit integers, which are exact on every device.
"""

from __future__ import annotations

import torch
from torch import Tensor

_STEP = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64

TRAIN, EVAL, BATCH = 0, 1, 2
"""Which third of the index space an item comes from; the three never meet."""
_SPLIT_BITS = 40


def split_index(split: int, position: Tensor) -> Tensor:
    """The global index of the items at ``position`` (below 2^40) of a split."""
    return position + (split << _SPLIT_BITS)


def draw_index(n: int, generator: torch.Generator) -> Tensor:  # [n] int64
    """``n`` global indices of items that are in neither the training nor the evaluation split."""
    return split_index(BATCH, torch.randint(1 << _SPLIT_BITS, (n,), generator=generator))


def hash_bits(seed: int, index: Tensor, num: int) -> Tensor:  # index [n] -> [n, num] int64
    """``num`` well mixed 64-bit integers for each index."""
    key = _mix(torch.tensor([seed], dtype=torch.int64, device=index.device) * _STEP + _STEP)
    rows = _mix(_mix(index.long() * _STEP) ^ key)
    slots = torch.arange(1, num + 1, dtype=torch.int64, device=index.device) * _STEP
    return _mix(rows[:, None] + slots)


def uniform(seed: int, index: Tensor, num: int) -> Tensor:  # index [n] -> [n, num] float64
    """``num`` numbers in [0, 1) for each index."""
    return _shift(hash_bits(seed, index, num), 11).double() * 2.0**-53


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """A right shift that brings in zeros; torch's own repeats the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
