"""One LSTM layer, run by the first implementation, in order of preference, that can run here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hotlap.base.errors import ShapeError
from hotlap.base.shapes import bind_dims
from hotlap.kernels.choose import Choice, choose
from hotlap.kernels.lstm import cpu, cuda, triton
from hotlap.kernels.lstm.reference import lstm_ref


def _always(device: torch.device, dtype: torch.dtype, hidden: int) -> str:
    return ""


WHY_NOT: dict[str, Callable[[torch.device, torch.dtype, int], str]] = {
    "cuda": cuda.why_not,
    "triton": triton.why_not,
    "cpu": cpu.why_not,
    "reference": _always,
}
LAYERS: dict[str, Callable[..., tuple[Tensor, Tensor, Tensor]]] = {
    "cuda": cuda.lstm_cuda,
    "triton": triton.lstm_triton,
    "cpu": cpu.lstm_cpu,
    "reference": lstm_ref,
}
IMPLS = tuple(WHY_NOT)
"""The implementations, those that are preferred first."""


def lstm(
    x: Tensor,  # [B, T, F]
    weights: Sequence[Tensor],  # for each direction [4H, F], [4H, H], [4H], [4H]; gates in the order i, f, g, o
    lengths: Tensor | None = None,  # [B] whole numbers; None: every sequence has T steps
    h0: Tensor | None = None,  # [D, B, H]; None: zeros
    c0: Tensor | None = None,  # [D, B, H]; None: zeros
    *,
    impl: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs [B, T, D * H] and the last states h_n and c_n [D, B, H] of one layer of an ``nn.LSTM``.

    ``weights`` are the layer's parameters in the order of ``nn.LSTM``, four for one direction or eight for two. Steps
    at or after a sequence's length put out zeros and leave its state alone, as packed sequences do. Differentiable in
    everything but ``lengths``. Under autocast everything is cast to its number format first, as for ``nn.LSTM``.
    """
    _check(x, weights, lengths, h0, c0)
    x, weights, h0, c0 = _as_autocast(x, weights, h0, c0)
    if x.shape[0] == 0 or x.shape[1] == 0:
        return lstm_ref(x, weights, lengths, h0, c0)
    name = _pick(impl, x.device, x.dtype, weights[1].shape[1])
    with torch.autocast(x.device.type, enabled=False):
        return LAYERS[name](x, weights, lengths, h0, c0)


def lstm_choice(device: torch.device, dtype: torch.dtype, hidden: int, impl: str = "auto") -> Choice:
    """The implementation that such tensors get, and the reasons against those before it."""
    return choose({name: partial(ask, device, dtype, hidden) for name, ask in WHY_NOT.items()}, impl)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _pick(impl: str, device: torch.device, dtype: torch.dtype, hidden: int) -> str:
    return lstm_choice(device, dtype, hidden, impl).impl


def _check(x: Tensor, weights: Sequence[Tensor], lengths: Tensor | None, h0: Tensor | None, c0: Tensor | None) -> None:
    if len(weights) not in (4, 8):
        raise ShapeError(
            f"len(weights) = {len(weights)} is not valid",
            expected="weight_ih, weight_hh, bias_ih and bias_hh for one direction or for two",
        )
    square = bind_dims(**{"weights[1]": (weights[1], "4H H")})
    if square["4H"] != 4 * square["H"]:
        raise ShapeError(f"weights[1] must be [4H, H], got {list(weights[1].shape)}")
    named: dict[str, tuple[Any, str]] = {"x": (x, "B T F"), "weights[1]": (weights[1], "4H H")}
    for start in range(0, len(weights), 4):
        specs = ("4H F", "4H H", "4H", "4H")
        named |= {f"weights[{start + k}]": (weights[start + k], spec) for k, spec in enumerate(specs)}
    of_state = f"{len(weights) // 4} B H"
    for name, tensor, spec in (("lengths", lengths, "B"), ("h0", h0, of_state), ("c0", c0, of_state)):
        if tensor is not None:
            named[name] = (tensor, spec)
    bind_dims(**named)


def _as_autocast(
    x: Tensor, weights: Sequence[Tensor], h0: Tensor | None, c0: Tensor | None
) -> tuple[Tensor, Sequence[Tensor], Tensor | None, Tensor | None]:
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or x.dtype == torch.float64:
        return x, weights, h0, c0
    dtype = torch.get_autocast_dtype(kind)
    states = [state if state is None else state.to(dtype) for state in (h0, c0)]
    return x.to(dtype), [weight.to(dtype) for weight in weights], states[0], states[1]
