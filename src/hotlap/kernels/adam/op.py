"""A step of Adam over the parameters of a splat model, by the first implementation that can run here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from hotlap.base.errors import ShapeError
from hotlap.kernels.adam import cpu, cuda
from hotlap.kernels.adam.reference import adam_flush_ref, adam_step_ref
from hotlap.kernels.adam.state import AdamConfig, AdamState
from hotlap.kernels.choose import Choice, choose


def _always(state: AdamState) -> str:
    return ""


WHY_NOT: dict[str, Callable[[AdamState], str]] = {"cuda": cuda.why_not, "cpu": cpu.why_not, "reference": _always}
STEPS: dict[str, Callable[[AdamState, Sequence[Tensor], AdamConfig, Tensor | None], None]] = {
    "cuda": cuda.step,
    "cpu": cpu.step,
    "reference": adam_step_ref,
}
FLUSHES: dict[str, Callable[[AdamState, AdamConfig], None]] = {
    "cuda": cuda.flush,
    "cpu": cpu.flush,
    "reference": adam_flush_ref,
}
IMPLS = tuple(WHY_NOT)
"""The implementations, those that are preferred first."""


def adam_step(
    state: AdamState,
    grads: Sequence[Tensor],  # [N, ...] each, like the parameters
    config: AdamConfig,
    visible: Tensor | None = None,  # [N] bool; None: all
    *,
    impl: str = "auto",
) -> None:
    """Makes one step, in place, as ``torch.optim.Adam`` does.

    Rates and the number of the step are read on the device, so that a CUDA graph can replay it. The gradient of a row
    that is not visible is 0, whatever it holds; ``config.mode`` says what becomes of such a row.
    """
    if len(grads) != len(state.params):
        raise ShapeError(f"len(grads) = {len(grads)} is not valid", expected=f"{len(state.params)}, one a parameter")
    for n, (grad, param) in enumerate(zip(grads, state.params, strict=True)):
        if grad.shape != param.shape or grad.dtype != param.dtype:
            raise ShapeError(
                f"grads[{n}] is {grad.dtype} {list(grad.shape)}", expected=f"{param.dtype} {list(param.shape)}"
            )
    if visible is not None and (visible.shape != (state.num_rows,) or visible.dtype not in (torch.bool, torch.uint8)):
        raise ShapeError(f"visible is {visible.dtype} {list(visible.shape)}", expected=f"torch.bool [{state.num_rows}]")
    STEPS[adam_choice(state, impl).impl](state, grads, config, visible)


def adam_flush(state: AdamState, config: AdamConfig, *, impl: str = "auto") -> None:
    """Brings every row of a lazy state up to date, in place: before densification, export and evaluation."""
    FLUSHES[adam_choice(state, impl).impl](state, config)


def adam_choice(state: AdamState, impl: str = "auto") -> Choice:
    """The implementation that such parameters get, and the reasons against those before it."""
    return choose({name: partial(ask, state) for name, ask in WHY_NOT.items()}, impl)
