"""Whether gradients point where they should, in a problem so sensitive that the size of their error says little.

Every ReLU of a fresh deep network that rounding flips turns the gradients of all layers before it: those of a ResNet-50
in bfloat16 have a cosine of 0.13 with the true ones, whoever computes them. But how far rounding turns each of them can
be computed, and right programs were seen to turn them equally far: to 0.02 in the cosine of all together, on twelve
kinds of networks. So each parameter's gradient is asked for the direction and the size that rounding leaves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotlap.records.measurement import GateCheck

if TYPE_CHECKING:
    from torch import Tensor

Gradients = Mapping[str, "Tensor"]

CHANCE = 5.0
"""Times 1/sqrt(channels) by which chance may turn a parameter's gradient further: the cosine of random vectors has one
such standard deviation. Of some 5,000 gradients of right programs the furthest was 3.4 of them off."""
FEWEST = 25
"""Channels from which on a parameter is asked by itself: chance may turn that of fewer anywhere."""
CLEAR = 0.5
"""The cosine from which on plain float32 knows where a gradient points. That of a bias before a normalisation is zero,
and points nowhere."""


@dataclass(frozen=True)
class Turned:
    """A gradient beside the true one and the one that it is compared with."""

    name: str
    cosine: float
    moved: float
    """The cosine of the one that it is compared with."""
    least: float
    """The cosine that is asked for."""
    size: float
    """Times the norm of that one."""
    most: float
    """Times that it may be larger or smaller."""

    @property
    def off(self) -> float:
        """Times that it is larger or smaller than that one."""
        return max(self.size, 1 / self.size if self.size else math.inf)


@dataclass(frozen=True)
class Allowed:
    """How far from the truth an arm's gradients may be turned, as the tangent of an angle."""

    by: float
    """Times as far as those that they are compared with are."""
    share: float
    """What the number format may cost in any case."""
    size: float
    """Times as large or as small."""

    def least(self, cosine: float) -> float:
        """The cosine that is asked for where those have this one, above zero."""
        tangent = math.sqrt(max(0.0, 1 / cosine**2 - 1))
        return 1 / math.sqrt(1 + max(self.by * tangent, self.share) ** 2)


def direction_checks(
    got: Gradients, truth: Gradients, plain: Gradients, moved: Gradients, allowed: Allowed, beside: str
) -> list[GateCheck]:
    """The parameter whose direction, and the one whose size, is furthest from what it may be.

    ``moved`` are what they are compared with: the gradients of the rounded truth, or float32's own. ``plain`` are
    float32's, which say whether there is a direction.
    """
    found = list(_each(got, truth, plain, moved, allowed))
    way = max(found, key=lambda one: one.least - one.cosine)
    size = max(found, key=lambda one: one.off / one.most)
    return [
        GateCheck(
            name="gradient direction",
            error=1 - way.cosine,
            allowed=1 - way.least,
            passed=way.cosine >= way.least,
            detail=f"{way.name}: cosine {way.cosine:.3g}, {beside} {way.moved:.3g}",
        ),
        GateCheck(
            name="gradient size",
            error=size.off - 1,  # nothing for the right size, as every other error
            allowed=size.most - 1,
            passed=size.off <= size.most,
            detail=f"{size.name}: {size.size:.3g} times the norm, {beside} 1",
        ),
    ]


def _each(got: Gradients, truth: Gradients, plain: Gradients, moved: Gradients, allowed: Allowed) -> Iterator[Turned]:
    """All gradients as one, which chance does not excuse, and every one that is large and has a direction."""
    import torch

    def whole(of: Gradients) -> Tensor:
        return torch.cat([of[name].flatten() for name in truth])

    yield _beside("all together", whole(got), whole(truth), whole(moved), allowed, chance=0.0)
    for name, want in truth.items():
        channels = want.shape[0] if want.ndim else 1
        if channels >= FEWEST and _cosine(plain[name], want) >= CLEAR:
            yield _beside(name, got[name], want, moved[name], allowed, CHANCE / math.sqrt(channels))


def _beside(name: str, got: Tensor, truth: Tensor, moved: Tensor, allowed: Allowed, chance: float) -> Turned:
    at, norm = _cosine(moved, truth), float(moved.norm())
    if at > 0:
        least = allowed.least(at)
        chance *= math.sqrt(1 - least**2)  # what points nearly where it should cannot be turned far by chance
    else:
        least = -1.0 if chance else 1.0  # no direction is left: of one parameter, or nothing to compare at all
    return Turned(
        name=name,
        cosine=_cosine(got, truth),
        moved=at,
        least=least - chance,
        size=float(got.norm()) / norm if norm > 0 else math.inf,
        most=allowed.size * math.exp(chance),
    )


def _cosine(a: Tensor, b: Tensor) -> float:
    norms = float(a.norm()) * float(b.norm())
    return min(1.0, float((a * b).sum()) / norms) if norms > 0 and math.isfinite(norms) else 0.0
