"""How the number of splats changes: clones, splits and prunes by gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hotlap.base.errors import HotlapError
from hotlap.kernels.densify.op import densify_plan
from hotlap.kernels.densify.stats import CHILD_A, CHILD_B, COPY
from hotlap.splat.config import SplatTrainConfig
from hotlap.splat.state import SplatState

SHRINK = 1.6
"""The extents of a split splat's children are those of the parent over this."""


@dataclass(frozen=True, kw_only=True)
class Changed:
    """What a densification did."""

    cloned: int = 0
    split: int = 0
    pruned: int = 0
    moved: int = 0
    reset: bool = False


class Refused(HotlapError):
    """A densification that would have spoilt the model; nothing was changed."""


class Extinction(Refused):
    """One densification would have removed all splats."""

    def __init__(self, step: int, before: int, config: SplatTrainConfig) -> None:
        super().__init__(
            f"densification after {step} steps would remove all {before} splats as too faint or too large",
            remedy=f"Lower --prune-opacity = {config.prune_opacity:g} or the rates, or raise --prune-scale = "
            f"{config.prune_scale:g}; nothing was changed",
        )


class Explosion(Refused):
    """One densification would have multiplied the splats beyond what the training allows."""

    def __init__(self, before: int, after: int, config: SplatTrainConfig) -> None:
        super().__init__(
            f"densification would make {after} splats of {before}, "
            f"more than abort_growth = {config.abort_growth:g} times as many",
            remedy="Raise --densify-grad, or set a limit with --max-splats; nothing was changed",
        )


class Strategy(Protocol):
    """What is done to the splats between steps."""

    def after(self, step: int, state: SplatState) -> Changed | None:
        """What was changed after so many steps; None for nothing."""


class Fixed:
    """Leaves the splats as they are."""

    def after(self, step: int, state: SplatState) -> Changed | None:
        return None


class Adaptive:
    """Clones small splats and splits large ones whose gradient is large; removes faint and huge ones."""

    def __init__(self, config: SplatTrainConfig, extent: float) -> None:
        self.config, self.extent = config, extent

    def after(self, step: int, state: SplatState) -> Changed | None:
        c = self.config
        if not c.densify_every or step >= min(c.densify_until, c.steps):
            return None
        changed = None
        if step > c.densify_from and step % c.densify_every == 0:
            state.flush()
            changed = self._refine(step, state)
            state.clear_stats()
        if c.reset_every and step % c.reset_every == 0:
            state.flush()
            reset_opacities(state, 2 * c.prune_opacity)
            changed = Changed(
                cloned=changed.cloned if changed else 0, split=changed.split if changed else 0,
                pruned=changed.pruned if changed else 0, reset=True,
            )  # fmt: skip
        return changed

    def _refine(self, step: int, state: SplatState) -> Changed:
        gradient = self.gradient(state)
        high = gradient > self.config.densify_grad
        room = max(0, self.config.most_splats - state.count)
        if int(high.sum()) > room:
            high = _largest(gradient, high, room)
        return apply_growth(step, state, self.config, high, self._large(state), self._unwanted(step, state, high))

    def gradient(self, state: SplatState) -> Tensor:  # [N]
        """The mean gradient since the last densification."""
        c = self.config
        if c.densify_signal == "world":
            return state.alive("stats.world") / c.densify_every
        return state.alive("stats.grad") / state.alive("stats.count").clamp(min=1)

    def _large(self, state: SplatState) -> Tensor:  # [N] bool
        c, extents = self.config, torch.exp(state.alive("scales"))
        if c.split_sigma:
            return extents.mean(1) > c.split_sigma
        return extents.amax(1) > c.split_scale * self.extent

    def _unwanted(self, step: int, state: SplatState, high: Tensor) -> Tensor:  # [N] bool
        """Faint splats and, after a while, those that stay huge even when split."""
        c = self.config
        unwanted = torch.sigmoid(state.alive("opacities")) < c.prune_opacity
        if c.prune_scale and step > c.prune_scale_from:
            extents = torch.exp(state.alive("scales")).amax(1)
            extents = torch.where(high & self._large(state), extents / SHRINK, extents)
            unwanted |= extents > c.prune_scale * self.extent
        return unwanted


def _largest(score: Tensor, among: Tensor, num: int) -> Tensor:  # [N] each -> [N] bool
    """The ``num`` of some splats with the largest score."""
    chosen = torch.zeros_like(among)
    num = min(num, int(among.sum()))
    if num:
        chosen[torch.where(among, score, -1.0).topk(num).indices] = True
    return chosen


def apply_growth(
    step: int, state: SplatState, config: SplatTrainConfig, high: Tensor, large: Tensor, unwanted: Tensor
) -> Changed:  # [N] bool each
    """Clones the small and splits the large among ``high``, and removes the unwanted."""
    clone, split = high & ~large & ~unwanted, high & large & ~unwanted
    cloned, halved, pruned = torch.stack([clone.sum(), split.sum(), unwanted.sum()]).tolist()
    before, after = state.count, state.count + cloned + halved - pruned
    if not after:
        raise Extinction(step, before, config)
    if config.abort_growth and before >= 1000 and after > config.abort_growth * before:
        raise Explosion(before, after, config)
    plan = densify_plan(clone, split, unwanted)
    fresh = plan.kind >= COPY
    children = (plan.kind == CHILD_A) | (plan.kind == CHILD_B)
    state.take(plan.source, fresh)
    if halved:
        _scatter(state, children, chance(config.seed, step, state.device))
    return Changed(cloned=cloned, split=halved, pruned=pruned)


def _scatter(state: SplatState, children: Tensor, generator: torch.Generator) -> None:  # [M] bool
    """Puts the children of split splats at places drawn from their parent, and makes them smaller."""
    scales, quats = state.alive("scales")[children], state.alive("quats")[children]
    normal = torch.randn(len(scales), 3, generator=generator, device=state.device)
    state.alive("means")[children] += turned(quats, normal * torch.exp(scales))
    state.alive("scales")[children] = scales - torch.log(torch.tensor(SHRINK))


def turned(quats: Tensor, vectors: Tensor) -> Tensor:  # [N, 4] w, x, y, z; [N, 3]
    """Vectors turned by rotations."""
    unit = torch.nn.functional.normalize(quats, dim=1)
    real, axis = unit[:, :1], unit[:, 1:]
    across = 2 * torch.linalg.cross(axis, vectors)
    return vectors + real * across + torch.linalg.cross(axis, across)


def reset_opacities(state: SplatState, most: float) -> None:
    """No splat is more opaque than this; what hides behind others shows, and what is of no use stays faint."""
    limit = torch.logit(torch.tensor(most, dtype=torch.float64)).item()
    state.alive("opacities").clamp_(max=limit)
    state.clear_moments("opacities")


def chance(seed: int, step: int, device: torch.device) -> torch.Generator:
    """A generator that a step has for itself: what is drawn depends on seed and step alone."""
    return torch.Generator(device=device).manual_seed((seed * 1_000_003 + step) % 2**63)
