"""What a splatting kernel is given and what it gives back; every implementation has the same two functions.

``forward(splats, view) -> Drawn`` draws, and
``backward(splats, view, drawn, v_colors, v_alphas, v_means2d, needs) -> dict`` has the gradients asked for, by name;
of the three that it is given, any may be None where the loss does not depend on that result.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

TILE = 16
"""Pixels on each side of a tile."""
MIN_ALPHA = 1 / 255
"""What a splat covers less of a pixel than this is left out, as in gsplat and in the first implementation."""
MAX_ALPHA = 0.999
"""No splat covers more of a pixel than this, so that what is behind it can still be learned."""
MIN_TRANSMITTANCE = 1e-4
"""A splat that would leave no more light than this is left out, and so are those behind it."""
CLAMP = 0.15
"""The projection is linearised at most so far outside the picture, in widths and heights of it."""
GRADIENTS = ("means", "quats", "scales", "opacities", "colors", "viewmats", "Ks", "backgrounds", "means2d")
"""What ``needs`` may name; ``means2d_abs`` comes with ``means2d`` if the view has ``absgrad``."""


@dataclass(frozen=True, kw_only=True)
class View:
    """How a frame is drawn. It can be hashed, so that kernels may be compiled for it."""

    width: int
    """Pixels of a row."""
    height: int
    """Rows."""
    near: float = 0.01
    """Splats with a smaller depth are not drawn."""
    far: float = 1e10
    """Splats with a greater depth are not drawn."""
    eps2d: float = 0.3
    """Added to the variances on the screen, in square pixels: no splat is much thinner than a pixel."""
    radius_clip: float = 0.0
    """Splats whose extents, in pixels, are both no more than this are not drawn."""
    antialiased: bool = False
    """Opacities are lowered by what ``eps2d`` makes splats larger."""
    sh_degree: int | None = None
    """Of the spherical harmonics that the colours are coefficients of; None: they are colours as they are."""
    raw: bool = False
    """Scales are logarithms and opacities logits, and so are their gradients."""
    depth: bool = False
    """One more channel at the end: the depth of the splats, blended with the same weights as the colours."""
    absgrad: bool = False
    """The sum over pixels of the absolute gradients of ``means2d`` is wanted too."""


@dataclass(eq=False)  # frozen, it would take the host three times as long to make; by keyword, more than twice
class Splats:
    """What a frame is drawn from; all tensors are of one floating-point type and on one device."""

    means: Tensor
    """[N, 3] centres in the world."""
    quats: Tensor
    """[N, 4] rotations as w, x, y, z, of any length but 0."""
    scales: Tensor
    """[N, 3] standard deviations along the axes, or their logarithms."""
    opacities: Tensor
    """[N], or their logits."""
    colors: Tensor
    """[N, K, 3] coefficients with K >= (sh_degree + 1)^2, or colours [N, D] or [C, N, D]; D may be 0."""
    viewmats: Tensor
    """[C, 4, 4] camera from world: rotation and shift."""
    Ks: Tensor
    """[C, 3, 3] pinhole intrinsics in pixels; the skew is not read."""
    backgrounds: Tensor | None
    """[C, D] behind all splats, or [C, 3] with coefficients; None: black. The depth behind all splats is 0."""


INPUTS = tuple(field.name for field in fields(Splats))


def inputs_of(splats: Splats) -> tuple[Any, ...]:
    """The tensors in the order of ``INPUTS``."""
    return (
        splats.means, splats.quats, splats.scales, splats.opacities, splats.colors, splats.viewmats, splats.Ks,
        splats.backgrounds,
    )  # fmt: skip


@dataclass(kw_only=True, eq=False)
class Facts:
    """What is known of each splat on each screen, without gradients; zeros for those that are not drawn."""

    radii: Tensor
    """[C, N, 2] int32 half extents in pixels, rounded up; 0: not drawn."""
    depths: Tensor
    """[C, N] the camera's z."""
    conics: Tensor
    """[C, N, 3] the inverse covariance on the screen: xx, xy, yy."""
    tiles_per_splat: Tensor
    """[C, N] int32 tiles in which a splat is looked at; never less than those where it covers a pixel."""

    def changes(self) -> int:
        """How often they were changed in place, as torch counts it."""
        tensors = (self.radii, self.depths, self.conics, self.tiles_per_splat)
        return sum(tensor._version for tensor in tensors)


@dataclass(eq=False)  # as ``Splats``
class Drawn:
    """A frame."""

    colors: Tensor
    """[C, H, W, D], with ``view.depth`` one channel more."""
    alphas: Tensor
    """[C, H, W, 1] what the splats cover of each pixel."""
    means2d: Tensor
    """[C, N, 2] centres on the screen, in pixels; the first pixel's centre is at 0.5. Zeros for splats not drawn."""
    facts: Facts
    saved: Any = None
    """What this implementation's ``backward`` needs besides. It must not hold the three tensors themselves."""


def outputs_of(drawn: Drawn) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """All tensors in order; the first three have gradients."""
    facts = drawn.facts
    return (
        drawn.colors, drawn.alphas, drawn.means2d, facts.radii, facts.depths, facts.conics, facts.tiles_per_splat
    )  # fmt: skip


def or_zeros(drawn: Drawn, v_colors: Tensor | None, v_alphas: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradients of the picture and its alphas, zeros for those that are None."""
    return (
        torch.zeros_like(drawn.colors) if v_colors is None else v_colors,
        torch.zeros_like(drawn.alphas) if v_alphas is None else v_alphas,
    )
