"""Answers against float64: a probe passes on right numbers, not on the absence of an exception."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class WrongNumber(ArithmeticError):
    """A library ran and gave a wrong answer."""


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest difference from the float64 answer, as a fraction of that answer's largest value."""
    difference = (got.detach().double().cpu() - want.detach().double().cpu()).abs().max()
    return float(difference / want.detach().abs().max().double().cpu().clamp_min(1e-30))


def agree(name: str, got: torch.Tensor, want: torch.Tensor, allowed: float) -> str:
    """The error in words; raises :class:`WrongNumber` when it is above ``allowed`` or not a number."""
    error = relative_error(got, want)
    if not error <= allowed:
        raise WrongNumber(f"{name} is wrong: relative error {error:.2g} against float64, allowed {allowed:.2g}")
    return f"{name} {error:.1e}"
