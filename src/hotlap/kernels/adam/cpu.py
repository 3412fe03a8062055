"""A step of Adam on the CPU, compiled by numba; ``adam.cu`` explains the lazy mode."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from math import expm1, log, prod, sqrt

import torch
from torch import Tensor

from hotlap.kernels.adam.state import BLOCK, WINDOW, AdamConfig, AdamState
from hotlap.kernels.threads import in_threads


def why_not(state: AdamState) -> str:
    """Why this implementation cannot step such parameters; '' if it can."""
    like = state.params[0]
    if like.device.type != "cpu":
        return f"the tensors are on {like.device.type}"
    if like.dtype != torch.float32:
        return f"{str(like.dtype).removeprefix('torch.')} is not float32"
    return "" if find_spec("numba") is not None else "numba is not installed"


def step(state: AdamState, grads: Sequence[Tensor], config: AdamConfig, visible: Tensor | None = None) -> None:
    """Makes one step in place; ``adam_step_ref`` says which."""
    now = int(state.step) + 1
    seen = torch.ones(state.num_rows, dtype=torch.bool) if visible is None else visible.bool()
    missed = torch.zeros(state.num_rows, dtype=torch.int32)
    if config.mode == "selective":
        missed[~seen] = -1
    if config.mode == "lazy":
        due = torch.arange(state.num_rows) // BLOCK % WINDOW == now % WINDOW
        missed = torch.where(seen | due, now - 1 - state.last, -1)
    _run(state, grads, config, now, missed, seen, state.history[now & 1])
    state.step.fill_(now)
    if config.mode == "lazy":
        _extend_history(state, config, now)


def flush(state: AdamState, config: AdamConfig) -> None:
    """Brings all rows of a lazy state up to date."""
    if config.mode != "lazy":
        return
    now = int(state.step)
    missed = now - state.last
    missed[missed == 0] = -1
    seen = torch.zeros(state.num_rows, dtype=torch.bool)
    _run(state, None, config, now, missed, seen, state.history[(now + 1) & 1])


def _run(
    state: AdamState, grads: Sequence[Tensor] | None, config: AdamConfig, now: int, missed: Tensor, seen: Tensor,
    history: Tensor,  # [G, 256]
) -> None:  # fmt: skip
    from hotlap.kernels.adam.cpu_kernels import adam_step_kernel

    lazy, kind = config.mode == "lazy", state.lrs.dtype
    behind = missed[: len(state.last)].clamp(min=0).double()  # none, unless lazy
    decays = [torch.exp(behind * log(beta)) for beta in (config.beta1, config.beta2)]
    at_last = config.eps * torch.sqrt(-torch.expm1(state.last.double() * log(config.beta2)))
    decays_and_eps = torch.stack([*decays, at_last], dim=1).to(kind)
    betas = torch.tensor([config.beta1, config.beta2, 1 - config.beta1, 1 - config.beta2], dtype=kind)
    root2 = sqrt(-expm1(now * log(config.beta2)))
    for n, param in enumerate(state.params):
        rate = state.lrs[n].item() / -expm1(now * log(config.beta1))
        numbers = torch.tensor([rate, root2, config.eps], dtype=kind)
        moves = history[n][(state.last % WINDOW).long()] if lazy else betas[:0]
        width = prod(param.shape[1:])
        grad = param if grads is None else grads[n].detach().contiguous()
        flat = [t.view(-1) for t in (param, grad, torch.zeros(width, dtype=kind), state.first[n], state.second[n])]
        given = (*flat, missed, seen, moves, decays_and_eps, betas, numbers)
        in_threads(adam_step_kernel, state.num_rows, width, *(t.numpy() for t in given), grads is None)
    if lazy:
        state.last[missed >= 0] = now


def _extend_history(state: AdamState, config: AdamConfig, now: int) -> None:
    """The sums of the steps that rows may have been left alone since, one step later."""
    since = (now - torch.arange(WINDOW)) % WINDOW
    shrink = torch.exp(since * (log(config.beta1) - 0.5 * log(config.beta2)))
    scale = sqrt(-expm1(now * log(config.beta2))) / -expm1(now * log(config.beta1))
    more = state.history[now & 1] + state.lrs[:, None] * scale * shrink
    state.history[(now + 1) & 1] = torch.where(since > 0, more, 0.0)
