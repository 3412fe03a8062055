"""Dropout whose masks belong to samples, run by the kernel where it can and by the reference elsewhere."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from hotlap.base.errors import ShapeError, UsageError
from hotlap.kernels.choose import Choice, choose
from hotlap.kernels.dropout import cuda
from hotlap.kernels.dropout.reference import Places, keyed_dropout_ref, place_numbers


def _always(x: Tensor, seeds: Tensor) -> str:
    return ""


WHY_NOT = {"cuda": cuda.why_not, "reference": _always}
IMPLS = tuple(WHY_NOT)
"""The implementations, those that are preferred first."""


def keyed_dropout(
    x: Tensor,  # [R, ...]
    seeds: Tensor,  # [N] int32, one for each sample; R is a multiple of N
    start: int,
    p: float,
    *,
    by_channel: bool = False,
    places: Places = place_numbers,
    impl: str = "auto",
) -> Tensor:
    """``x`` without the elements that the samples' seeds give up, a share ``p`` of them, and the rest over 1 - p.

    ``keyed_dropout_ref`` says what the arguments mean. Every implementation gives up the same elements.
    """
    if not 0 <= p < 1:
        raise UsageError(f"p = {p} is not valid", expected="at least 0 and below 1")
    rows, num_samples = x.shape[0], seeds.shape[0]
    if rows % max(1, num_samples) or rows > num_samples == 0:
        raise ShapeError(
            f"x has {rows} rows for {num_samples} seeds", expected="as many rows for every seed, such as one"
        )
    # This is called often in a step: the reasons against an implementation are collected only for who asks.
    if impl == "auto":
        runs = not cuda.why_not(x, seeds)
    else:
        runs = keyed_dropout_choice(x, seeds, impl).impl == "cuda"
    if runs:
        return cuda.keyed_dropout_cuda(x, seeds, start, p, by_channel=by_channel)
    return keyed_dropout_ref(x, seeds, start, p, by_channel=by_channel, places=places)


def keyed_dropout_choice(x: Tensor, seeds: Tensor, impl: str = "auto") -> Choice:
    """The implementation that such tensors get, and the reasons against those before it."""
    return choose({name: partial(ask, x, seeds) for name, ask in WHY_NOT.items()}, impl)
