"""The part of an LSTM layer that must go step by step, as one operator that the compiler and CUDA graphs leave whole.

Everything else is a few large matrix products in torch: the inputs' share of the gates before it, the gradients of the
inputs and weights after it. Gates lie as [B, T, D, H, 4], the four of one unit side by side, so that a thread that
owns a unit reads and writes them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Scan:
    """The two kernels of an implementation."""

    forward: Callable[..., None]
    """Fills out, h_n, c_n and, unless they are empty, acts and cells, from gates, w_hh, h0, c0 and lengths."""
    backward: Callable[..., None]
    """Fills d_gates, d_h0 and d_c0 from d_out, d_h_n, d_c_n, acts, cells, w_hh, c0 and lengths."""


def _scan(impl: str) -> Scan:
    return import_module(f"hotlap.kernels.lstm.{impl}").SCAN


def scan_layer(
    impl: str,
    x: Tensor,  # [B, T, F]
    weights: Sequence[Tensor],
    lengths: Tensor | None = None,  # [B]
    h0: Tensor | None = None,  # [D, B, H]
    c0: Tensor | None = None,  # [D, B, H]
) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs and last states of one layer, its recurrence run by the kernels of ``impl``."""
    num_batch, num_steps, _ = x.shape
    num_directions, hidden = len(weights) // 4, weights[1].shape[1]
    w_ih = _by_unit(torch.stack(list(weights[0::4])))
    bias = _by_unit(torch.stack(list(weights[2::4])) + torch.stack(list(weights[3::4])))
    gates = F.linear(x, w_ih.flatten(0, 2), bias.flatten())
    gates = gates.view(num_batch, num_steps, num_directions, hidden, 4)
    w_hh = torch.stack(list(weights[1::4]))
    if lengths is None:
        lengths = torch.full((num_batch,), num_steps, device=x.device)
    zeros = x.new_zeros(num_directions, num_batch, hidden)
    h0 = zeros if h0 is None else h0
    c0 = (zeros if c0 is None else c0).float()
    save = torch.is_grad_enabled() and any(t.requires_grad for t in (gates, w_hh, h0, c0))
    out, h_n, c_n, _, _ = lstm_scan(
        gates, w_hh, h0.contiguous(), c0.contiguous(), lengths.clamp(max=num_steps).to(torch.int32), impl, save
    )
    return out.flatten(2), h_n, c_n.to(x.dtype)


def _by_unit(stacked: Tensor) -> Tensor:  # [D, 4H, ...] -> [D, H, 4, ...]
    """The rows of the four gates, which lie one gate after the other, put together unit by unit."""
    return stacked.unflatten(1, (4, -1)).transpose(1, 2)


@torch.library.custom_op("hotlap::lstm_scan", mutates_args=())
def lstm_scan(
    gates: Tensor,  # [B, T, D, H, 4]
    w_hh: Tensor,  # [D, 4H, H]
    h0: Tensor,  # [D, B, H]
    c0: Tensor,  # [D, B, H] float32
    lengths: Tensor,  # [B] int32
    impl: str,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The outputs [B, T, D, H], last states [D, B, H] (c_n in float32) and what the backward pass needs, or empties.

    That is the gates after their sigmoid or tanh, and the cell states in float32.
    """
    out, h_n, c_n, acts, cells = _outputs(gates, h0, c0, save)
    _scan(impl).forward(gates, w_hh, h0, c0, lengths, out, h_n, c_n, acts, cells)
    return out, h_n, c_n, acts, cells


def _outputs(gates: Tensor, h0: Tensor, c0: Tensor, save: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    shape = list(gates.shape)
    return (
        gates.new_empty(shape[:-1]),
        torch.empty_like(h0),
        torch.empty_like(c0),
        gates.new_empty(shape if save else [0]),
        gates.new_empty(shape[:-1] if save else [0], dtype=torch.float32),
    )


@lstm_scan.register_fake
def _(
    gates: Tensor, w_hh: Tensor, h0: Tensor, c0: Tensor, lengths: Tensor, impl: str, save: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _outputs(gates, h0, c0, save)


@torch.library.custom_op("hotlap::lstm_scan_backward", mutates_args=())
def lstm_scan_backward(
    d_out: Tensor,  # [B, T, D, H]
    d_h_n: Tensor,  # [D, B, H]
    d_c_n: Tensor,  # [D, B, H] float32
    acts: Tensor,  # [B, T, D, H, 4]
    cells: Tensor,  # [B, T, D, H] float32
    w_hh: Tensor,  # [D, 4H, H]
    c0: Tensor,  # [D, B, H] float32
    lengths: Tensor,  # [B] int32
    impl: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the gates before their sigmoid or tanh [B, T, D, H, 4], of h0 and of c0 [D, B, H]."""
    d_gates, d_h0, d_c0 = torch.empty_like(acts), torch.empty_like(d_h_n), torch.empty_like(c0)
    _scan(impl).backward(d_out, d_h_n, d_c_n, acts, cells, w_hh, c0, lengths, d_gates, d_h0, d_c0)
    return d_gates, d_h0, d_c0


@lstm_scan_backward.register_fake
def _(
    d_out: Tensor,
    d_h_n: Tensor,
    d_c_n: Tensor,
    acts: Tensor,
    cells: Tensor,
    w_hh: Tensor,
    c0: Tensor,
    lengths: Tensor,
    impl: str,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(acts), torch.empty_like(d_h_n), torch.empty_like(c0)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, w_hh, h0, c0, lengths, ctx.impl, _ = inputs
    out, _, _, acts, cells = output
    ctx.save_for_backward(out, acts, cells, w_hh, h0, c0, lengths)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, d_out: Any, d_h_n: Any, d_c_n: Any, d_acts: Any, d_cells: Any) -> tuple[Any, ...]:
    out, acts, cells, w_hh, h0, c0, lengths = ctx.saved_tensors
    grads = [
        torch.zeros_like(like) if grad is None else grad.contiguous()
        for grad, like in ((d_out, out), (d_h_n, h0), (d_c_n, c0))
    ]
    d_gates, d_h0, d_c0 = lstm_scan_backward(*grads, acts, cells, w_hh, c0, lengths, ctx.impl)
    d_w_hh = _recurrent_weight_grad(d_gates, out, h0, lengths) if ctx.needs_input_grad[1] else None
    return d_gates, d_w_hh, d_h0, d_c0, None, None, None


lstm_scan.register_autograd(_differentiate, setup_context=_keep)


def _recurrent_weight_grad(d_gates: Tensor, out: Tensor, h0: Tensor, lengths: Tensor) -> Tensor:
    """The gradient [D, 4H, H] of the recurrent weights: each step's gates with the state they started from."""
    num_steps, num_directions, hidden = out.shape[1:]
    found = []
    for direction in range(num_directions):
        start, mine = h0[direction][:, None], out[:, :, direction]
        if direction == 0:
            before = torch.cat([start, mine[:, :-1]], dim=1)
        else:
            step = torch.arange(num_steps, device=out.device)
            is_first = (step == lengths[:, None] - 1)[..., None]
            before = torch.where(is_first, start, torch.cat([mine[:, 1:], start], dim=1))
        grad = d_gates[:, :, direction].flatten(0, 1).flatten(1).T @ before.flatten(0, 1)  # [H * 4, H]
        found.append(grad.view(hidden, 4, hidden).transpose(0, 1).flatten(0, 1))
    return torch.stack(found)
