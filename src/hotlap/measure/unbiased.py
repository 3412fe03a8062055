"""Convolutions without the bias that the BatchNorm after them takes away again, in training."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hotlap.base.errors import UsageError
from hotlap.measure.padded import PaddedConv2d


class _Unbiased:
    """A convolution that leaves its bias out while the norm after it works with the statistics of the batch.

    They take away whatever is the same for a whole channel. The bias costs a pass over the output forwards, and a sum
    over its gradient backwards, which is 0.
    """

    norm_after: tuple[Any]

    def forward(self: Any, x: Tensor) -> Tensor:
        out: Tensor = self.convolve(x, None if _is_lost(self, self.norm_after[0]) else self.bias)
        return out

    def convolve(self: Any, x: Tensor, bias: Tensor | None) -> Tensor:
        out: Tensor = self._conv_forward(x, self.weight, bias)
        return out


class UnbiasedConv1d(_Unbiased, nn.Conv1d):
    """A layer is turned into one where it stands."""


class UnbiasedConv2d(_Unbiased, nn.Conv2d):
    """A layer is turned into one where it stands."""


class UnbiasedConv3d(_Unbiased, nn.Conv3d):
    """A layer is turned into one where it stands."""


class UnbiasedPaddedConv2d(_Unbiased, PaddedConv2d):
    """A layer is turned into one where it stands."""

    convolve = PaddedConv2d.convolve


class _Shifted:
    """A norm whose running mean counts the bias that was left out, and which gives it its gradient of 0."""

    conv_before: tuple[Any]

    def forward(self: Any, x: Tensor) -> Tensor:
        if not _is_lost(self.conv_before[0], self):
            return super().forward(x)  # type: ignore[misc, no-any-return]
        self._check_input_dim(x)
        lost, share = self.conv_before[0].bias, self.momentum
        own = torch.add(self.bias, lost, alpha=0)  # the same numbers: an optimizer wants a gradient of every parameter
        if not self.track_running_stats or self.running_mean is None:
            return F.batch_norm(x, None, None, self.weight, own, True, 0.0, self.eps)
        self.num_batches_tracked.add_(1)
        share = 1.0 / float(self.num_batches_tracked) if share is None else share
        out = F.batch_norm(x, self.running_mean, self.running_var, self.weight, own, True, share, self.eps)
        # As data, or autograd would say that what it keeps was changed, if there are two passes before one goes back.
        self.running_mean.data.add_(lost.detach(), alpha=share)
        return out


class ShiftedBatchNorm1d(_Shifted, nn.BatchNorm1d):
    """A layer is turned into one where it stands."""


class ShiftedBatchNorm2d(_Shifted, nn.BatchNorm2d):
    """A layer is turned into one where it stands."""


class ShiftedBatchNorm3d(_Shifted, nn.BatchNorm3d):
    """A layer is turned into one where it stands."""


CONVOLUTIONS: dict[type, type] = {
    nn.Conv1d: UnbiasedConv1d, nn.Conv2d: UnbiasedConv2d, nn.Conv3d: UnbiasedConv3d, PaddedConv2d: UnbiasedPaddedConv2d,
}  # fmt: skip
NORMS: dict[type, type] = {
    nn.BatchNorm1d: ShiftedBatchNorm1d, nn.BatchNorm2d: ShiftedBatchNorm2d, nn.BatchNorm3d: ShiftedBatchNorm3d,
}  # fmt: skip


def _is_lost(conv: Any, norm: Any) -> bool:
    """Whether the norm takes the bias away: one that is frozen does not, and evaluation wants it."""
    return bool(conv.training and norm.training)


def biases_lost(model: nn.Module) -> list[tuple[nn.Module, nn.Module]]:
    """Convolutions with a bias, each with the BatchNorm that stands right behind it in a Sequential."""
    places = Counter(id(m) for _, m in model.named_modules(remove_duplicate=False))
    rows = [list(m.children()) for m in model.modules() if type(m) is nn.Sequential]
    found = []
    for conv, norm in (pair for row in rows for pair in pairwise(row)):
        # Of these classes themselves: one that was made from them may do more. A layer in two places has two readers.
        fit = type(conv) in CONVOLUTIONS and type(norm) in NORMS and places[id(conv)] == places[id(norm)] == 1
        if fit and getattr(conv, "bias", None) is not None and getattr(norm, "affine", False):
            found.append((conv, norm))
    return found


def drop_biases(model: nn.Module) -> None:
    """Lets every such pair compute without the bias; weights, results and what is learned stay what they were.

    Norms that are replaced, as for SyncBatchNorm, must be so before.
    """
    pairs: list[tuple[Any, Any]] = list(biases_lost(model))
    if not pairs:
        raise UsageError(
            f"option unbiased: no Sequential of {type(model).__name__} has a BatchNorm behind a biased convolution",
            remedy="Leave it out",
        )
    for conv, norm in pairs:
        conv.__class__, norm.__class__ = CONVOLUTIONS[type(conv)], NORMS[type(norm)]
        conv.norm_after, norm.conv_before = (norm,), (conv,)  # in tuples: neither is a part of the other
