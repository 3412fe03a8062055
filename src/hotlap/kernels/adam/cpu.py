"""A step of Adam on the CPU, compiled by numba; ``adam.cu`` explains the lazy mode."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from math import expm1, log, prod, sqrt
from typing import Any

import numpy as np
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
    now, num = int(state.step) + 1, state.num_rows
    seen = np.ones(num, np.bool_) if visible is None else visible.bool().numpy()
    missed = np.zeros(num, np.int32)
    if config.mode == "selective":
        missed[~seen] = -1
    if config.mode == "lazy":
        due = np.arange(num) // BLOCK % WINDOW == now % WINDOW
        missed = np.where(seen | due, now - 1 - state.last.numpy(), -1).astype(np.int32)
    _run(state, grads, config, now, missed, seen, state.history[now & 1])
    state.step.fill_(now)
    if config.mode == "lazy":
        _extend_history(state, config, now)


def flush(state: AdamState, config: AdamConfig) -> None:
    """Brings all rows of a lazy state up to date."""
    if config.mode != "lazy":
        return
    now = int(state.step)
    missed = now - state.last.numpy()
    missed[missed == 0] = -1
    seen = np.zeros(state.num_rows, np.bool_)
    _run(state, None, config, now, missed, seen, state.history[(now + 1) & 1])


def _run(
    state: AdamState, grads: Sequence[Tensor] | None, config: AdamConfig, now: int, missed: Any, seen: Any,
    history: Tensor,  # [G, 256]
) -> None:  # fmt: skip
    from hotlap.kernels.adam.cpu_kernels import adam_step_kernel

    lazy, last = config.mode == "lazy", state.last.numpy()
    decays = np.array([config.beta1, config.beta2]) ** np.arange(WINDOW + 1)[:, None]
    betas = np.array([config.beta1, config.beta2, 1 - config.beta1, 1 - config.beta2])
    tables = [table.astype(np.float32) for table in (decays, betas)]
    root2 = sqrt(-expm1(now * log(config.beta2)))
    for n, param in enumerate(state.params):
        rate = state.lrs[n].item() / -expm1(now * log(config.beta1))
        head, tail = state.tails[n] if state.tails else (prod(param.shape[1:]), 1.0)
        numbers = np.array([rate, root2, config.eps, log(config.beta2), tail], np.float32)
        moves = history[n].numpy() if lazy else tables[1]
        width = prod(param.shape[1:])
        grad = param if grads is None else grads[n].detach().contiguous()
        flat = [t.view(-1) for t in (param, grad, torch.zeros(width), state.first[n], state.second[n])]
        given = (*(t.numpy() for t in flat), missed, seen, last, moves, *tables, numbers, grads is None)
        in_threads(adam_step_kernel, state.num_rows, width, head, *given)
    if lazy:
        last[missed >= 0] = now


def _extend_history(state: AdamState, config: AdamConfig, now: int) -> None:
    """The sums of the steps that rows may have been left alone since, one step later."""
    since = (now - torch.arange(WINDOW)) % WINDOW
    shrink = torch.exp(since * (log(config.beta1) - 0.5 * log(config.beta2)))
    scale = sqrt(-expm1(now * log(config.beta2))) / -expm1(now * log(config.beta1))
    more = state.history[now & 1] + state.lrs[:, None] * scale * shrink
    state.history[(now + 1) & 1] = torch.where(since > 0, more, 0.0)
