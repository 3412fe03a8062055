"""Splats as samples of a Markov chain: dead ones are moved to living ones, and their number grows to a cap."""

from __future__ import annotations

import torch
from torch import Tensor

from hotlap.kernels.densify.op import densify_relocate
from hotlap.splat.config import LEARNABLE, SplatTrainConfig
from hotlap.splat.state import SplatState
from hotlap.splat.strategy import Changed, chance

GROWTH = 0.05
"""Of the splats that each densification adds."""
MAX_OPACITY = 1 - 1e-6
MAX_CHOICES = 2**24 - 1
"""The most categories that torch draws from."""


class MarkovChain:
    """Relocation and growth; the random moves between them are part of each step."""

    def __init__(self, config: SplatTrainConfig) -> None:
        self.config = config

    def after(self, step: int, state: SplatState) -> Changed | None:
        c = self.config
        if not c.densify_every or step >= min(c.densify_until, c.steps) or step <= c.densify_from:
            return None
        if step % c.densify_every:
            return None
        generator = chance(c.seed, step, state.device)
        moved = self._relocate(state, generator)
        added = self._grow(state, generator)
        state.clear_stats()
        return Changed(moved=moved, cloned=added)

    def _relocate(self, state: SplatState, generator: torch.Generator) -> int:
        """Puts dead splats where living ones are; how many."""
        opacities = torch.sigmoid(state.alive("opacities"))
        dead = (opacities <= self.config.prune_opacity).nonzero()[:, 0]
        living = (opacities > self.config.prune_opacity).nonzero()[:, 0]
        if not len(dead) or not len(living):
            return 0
        chosen = living[_draw(opacities[living], len(dead), generator)]
        self._share(state, chosen)
        for name in LEARNABLE:
            state.alive(name)[dead] = state.alive(name)[chosen]
        for name in state.learned:
            state.clear_moments(name, chosen)
            state.clear_moments(name, dead)
        return len(dead)

    def _grow(self, state: SplatState, generator: torch.Generator) -> int:
        """Adds a twentieth, up to the cap; how many."""
        added = min(self.config.most_splats, int((1 + GROWTH) * state.count)) - state.count
        if added <= 0:
            return 0
        # What is no number is removed when the training is next looked after; it must not be drawn by until then.
        weights = torch.sigmoid(state.alive("opacities")).nan_to_num(0.0)
        if not bool(weights.any()):
            return 0
        chosen = _draw(weights, added, generator)
        self._share(state, chosen)
        every = torch.arange(state.count, device=state.device)
        fresh = torch.arange(state.count + added, device=state.device) >= state.count
        state.take(torch.cat([every, chosen]), fresh)
        return added

    def _share(self, state: SplatState, chosen: Tensor) -> None:  # [M]
        """Makes splats that will have company so faint and so large that together they look as one did."""
        ratios = torch.bincount(chosen, minlength=state.count)[chosen] + 1
        opacities, scales = densify_relocate(
            torch.sigmoid(state.alive("opacities")[chosen]), torch.exp(state.alive("scales")[chosen]), ratios.int()
        )
        opacities = opacities.clamp(self.config.prune_opacity, MAX_OPACITY)
        state.alive("opacities")[chosen] = torch.logit(opacities)
        state.alive("scales")[chosen] = torch.log(scales)


def _draw(weights: Tensor, num: int, generator: torch.Generator) -> Tensor:  # [N] -> [num]
    """Places drawn, with repetition, as often as their weights say."""
    if len(weights) <= MAX_CHOICES:
        return torch.multinomial(weights, num, replacement=True, generator=generator)
    edges = weights.double().cumsum(0)
    at = torch.rand(num, dtype=torch.float64, device=weights.device, generator=generator) * edges[-1]
    return torch.searchsorted(edges, at).clamp(max=len(weights) - 1)
