"""One step of Adam in plain torch: the truth that every implementation is held to."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from hotlap.kernels.adam.state import AdamConfig, AdamState


def adam_step_ref(
    state: AdamState,
    grads: Sequence[Tensor],  # [N, ...] each
    config: AdamConfig,
    visible: Tensor | None = None,  # [N] bool; None: all
) -> None:
    """Makes one step as ``torch.optim.Adam`` does, in place.

    The gradient of a row that is not visible is 0, whatever it holds; with ``selective`` such a row is left alone. In
    ``lazy`` mode this is the dense step, so that there is never anything to catch up with.
    """
    state.step.add_(1)
    step = state.step.to(state.lrs.dtype)
    correct1, correct2 = 1 - config.beta1**step, 1 - config.beta2**step
    for n, (param, first, second) in enumerate(zip(state.params, state.first, state.second, strict=True)):
        seen = torch.ones(len(param), dtype=torch.bool, device=param.device) if visible is None else visible.bool()
        seen = seen.view(-1, *[1] * (param.dim() - 1))
        grad = torch.where(seen, grads[n], 0.0)
        mean = config.beta1 * first + (1 - config.beta1) * grad
        squares = config.beta2 * second + (1 - config.beta2) * grad**2
        shares = param.new_ones(prod(param.shape[1:]))
        if state.tails:
            shares[state.tails[n][0] :] = state.tails[n][1]
        rates = state.lrs[n] * shares.view(param.shape[1:])
        moved = param - rates / correct1 * mean / ((squares / correct2).sqrt() + config.eps)
        changed = seen | torch.tensor(config.mode != "selective", device=seen.device)
        first.copy_(torch.where(changed, mean, first))
        second.copy_(torch.where(changed, squares, second))
        param.copy_(torch.where(changed, moved, param))


def adam_flush_ref(state: AdamState, config: AdamConfig) -> None:
    """Nothing: no row is ever behind."""
