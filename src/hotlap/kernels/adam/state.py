"""What Adam keeps between steps, for a model whose parameters all have one row a splat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from hotlap.base.errors import ConfigError, ShapeError, did_you_mean

MODES = ("dense", "selective", "lazy")
WINDOW = 256
"""Lazy: no row is left behind for more steps than this."""
BLOCK = 128
"""Rows that are brought up to date together."""
MAX_GROUPS = 8
"""Parameters of a model."""


@dataclass(frozen=True, kw_only=True)
class AdamConfig:
    """How a step is made."""

    beta1: float = 0.9
    """How much of the mean gradient is kept at a step."""
    beta2: float = 0.999
    """How much of the mean squared gradient is kept at a step."""
    eps: float = 1e-15
    """Added to the root of the mean squared gradient."""
    mode: str = "dense"
    """dense: every row at every step; selective: rows that are not visible are left alone, which is another algorithm;
    lazy: the results of dense, with rows that are not visible brought up to date when they are, or by a flush."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"mode = {self.mode!r} is not known", remedy=did_you_mean(self.mode, MODES))
        for name in ("beta1", "beta2"):
            if not 0 < getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name):g} is not valid", expected="a number between 0 and 1")
        if self.eps < 0:
            raise ConfigError(f"eps = {self.eps:g} is not valid", expected="a number that is not negative")


@dataclass(frozen=True, kw_only=True, eq=False)
class AdamState:
    """The parameters and what is known of their gradients; all on one device, changed in place by every step."""

    params: tuple[Tensor, ...]
    """[N, ...] each, without gaps."""
    first: tuple[Tensor, ...]
    """The mean gradient of each."""
    second: tuple[Tensor, ...]
    """The mean squared gradient of each."""
    lrs: Tensor
    """[G] the rate of each parameter; may be changed in place between steps."""
    step: Tensor
    """[] int32 steps made."""
    last: Tensor
    """[N] int32 lazy: the step up to which a row is right; empty in other modes."""
    history: Tensor
    """[2, G, 256] lazy: how far a row moves that was left alone since one of the last 256 steps, for a ratio 1 of
    mean gradient and root of mean squared gradient. A step reads the half that the step before wrote."""
    tails: tuple[tuple[int, float], ...] = ()
    """For each parameter the numbers at the front of a row that have its whole rate, and the share of it that those
    behind them have: spherical harmonics are one parameter, and their constant learns faster. Empty: all the same."""

    @property
    def num_rows(self) -> int:
        return self.params[0].shape[0]


def make_adam_state(
    params: Sequence[Tensor],
    lrs: Sequence[float],
    config: AdamConfig,
    tails: Mapping[int, tuple[int, float]] | None = None,
) -> AdamState:
    """A state before its first step. The parameters themselves are kept, and steps change them in place.

    ``tails`` says of a parameter, by its place, how many numbers of a row have the whole rate, and which share of it
    the others have.
    """
    if not 1 <= len(params) <= MAX_GROUPS:
        raise ShapeError(f"len(params) = {len(params)} is not valid", expected=f"1 to {MAX_GROUPS} parameters")
    if len(lrs) != len(params):
        raise ShapeError(f"len(lrs) = {len(lrs)} is not valid", expected=f"a rate for each of {len(params)} parameters")
    like, rows = params[0], params[0].shape[0]
    for n, param in enumerate(params):
        if param.shape[0] != rows or not param.is_contiguous() or param.dtype != like.dtype:
            raise ShapeError(
                f"params[{n}] is {param.dtype} {list(param.shape)} with strides {list(param.stride())}",
                expected=f"{like.dtype} [{rows}, ...] without gaps, like params[0]",
            )
    widths = [prod(param.shape[1:]) for param in params]
    for n, (head, share) in (tails or {}).items():
        if not (0 <= n < len(params) and 0 <= head <= widths[n]) or share < 0:
            raise ShapeError(
                f"tails[{n}] = {(head, share)} is not valid",
                expected=f"a parameter below {len(params)}, at most the numbers of its row, and a share of 0 or more",
            )
    lazy = config.mode == "lazy"
    return AdamState(
        params=tuple(param.detach() for param in params),
        first=tuple(torch.zeros_like(param) for param in params),
        second=tuple(torch.zeros_like(param) for param in params),
        lrs=torch.tensor(list(lrs), dtype=like.dtype, device=like.device),
        step=torch.zeros((), dtype=torch.int32, device=like.device),
        last=torch.zeros(rows if lazy else 0, dtype=torch.int32, device=like.device),
        history=torch.zeros(2, len(params) if lazy else 0, WINDOW, dtype=like.dtype, device=like.device),
        tails=tuple(tails.get(n, (width, 1.0)) for n, width in enumerate(widths)) if tails else (),
    )


def take_rows(state: AdamState, params: Sequence[Tensor], source: Tensor) -> AdamState:
    """The state after densification: row n was row ``source[n]`` before, or is new where that is negative.

    ``params`` are the new parameters, [M, ...] each. A lazy state must have been flushed.
    """
    rows = [param.shape[0] for param in params]
    if rows != [len(source)] * len(state.params):
        raise ShapeError(f"params have {rows} rows", expected=f"{len(state.params)} parameters of {len(source)} rows")
    kept, known = source.clamp(min=0).long(), source >= 0

    def moved(old: Tensor) -> Tensor:
        return old[kept] * known.view(-1, *[1] * (old.dim() - 1)).to(old.dtype)

    return replace(
        state,
        params=tuple(param.detach().contiguous() for param in params),
        first=tuple(moved(old) for old in state.first),
        second=tuple(moved(old) for old in state.second),
        last=state.step.expand(len(source)).clone() if len(state.last) or len(state.history[0]) else state.last,
    )
