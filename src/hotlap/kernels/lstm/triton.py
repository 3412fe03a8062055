"""One LSTM layer whose recurrence is one Triton program for each direction and 16 sequences, over all steps.

The programs do not wait for each other: each reads the recurrent weights again at every step, from the card's L2 cache.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from hotlap.kernels.lstm.scan import Scan, scan_layer

MAX_HIDDEN = 1024
"""The four gates of 16 sequences must fit the registers of one program."""
ROWS = 16
"""Sequences of a program: the least a tensor core takes."""


def why_not(device: torch.device, dtype: torch.dtype, hidden: int) -> str:
    """Why this implementation cannot run on such tensors; '' if it can."""
    if find_spec("triton") is None:
        return "triton is not installed"
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"the tensors are on {device.type} and TRITON_INTERPRET is not 1"
    if device.type != "cuda" and dtype == torch.bfloat16:
        return "Triton's interpreter multiplies bfloat16 as if it were whole numbers"
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"{str(dtype).removeprefix('torch.')} is not among float32, float16 and bfloat16"
    return f"hidden = {hidden} is above {MAX_HIDDEN}" if hidden > MAX_HIDDEN else ""


def lstm_triton(
    x: Tensor,  # [B, T, F]
    weights: Sequence[Tensor],
    lengths: Tensor | None = None,  # [B]
    h0: Tensor | None = None,  # [D, B, H]
    c0: Tensor | None = None,  # [D, B, H]
) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs and last states of one layer; ``lstm_ref`` says of what."""
    return scan_layer("triton", x, weights, lengths, h0, c0)


def _settings(gates: Tensor) -> tuple[tuple[int, int], dict[str, Any]]:
    num_batch, _, num_directions, hidden, _ = gates.shape
    units = max(16, 1 << (hidden - 1).bit_length())
    allowed = torch.backends.cudnn.rnn.fp32_precision == "tf32"  # type: ignore[attr-defined]
    settings = {
        "BLOCK_B": ROWS,
        "BLOCK_H": units,
        "BLOCK_K": 16 if units > 256 else 32 if units > 16 else 16,
        "PRECISION": "tf32" if allowed else "ieee",
        "num_warps": 4 if units <= 64 else 8 if units <= 256 else 16,
        "num_stages": 2,
    }
    return (-(-num_batch // ROWS), num_directions), settings


def _forward(
    gates: Tensor, w_hh: Tensor, h0: Tensor, c0: Tensor, lengths: Tensor,
    out: Tensor, h_n: Tensor, c_n: Tensor, acts: Tensor, cells: Tensor,
) -> None:  # fmt: skip
    grid, settings = _settings(gates)
    num_batch, num_steps, num_directions, hidden, _ = gates.shape
    state = torch.stack([h0, h0])  # read at one step and written at the next, in turn
    _kernels()["forward"][grid](
        gates.contiguous(), w_hh.contiguous(), state, c0, lengths, out, h_n, c_n, acts, cells,
        num_batch, num_steps, num_directions, hidden, SAVE=acts.numel() > 0, **settings,
    )  # fmt: skip


def _backward(
    d_out: Tensor, d_h_n: Tensor, d_c_n: Tensor, acts: Tensor, cells: Tensor, w_hh: Tensor, c0: Tensor, lengths: Tensor,
    d_gates: Tensor, d_h0: Tensor, d_c0: Tensor,
) -> None:  # fmt: skip
    grid, settings = _settings(acts)
    num_batch, num_steps, num_directions, hidden, _ = acts.shape
    _kernels()["backward"][grid](
        d_out, d_h_n, d_c_n, acts, cells, w_hh.contiguous(), c0, lengths, d_gates, d_h0, d_c0,
        num_batch, num_steps, num_directions, hidden, **settings,
    )  # fmt: skip


SCAN = Scan(forward=_forward, backward=_backward)


@functools.cache
def _kernels() -> dict[str, Any]:
    from hotlap.kernels.lstm.triton_kernels import lstm_bwd_kernel, lstm_fwd_kernel

    return {"forward": lstm_fwd_kernel, "backward": lstm_bwd_kernel}
