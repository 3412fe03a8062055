"""One LSTM layer on the CPU by torch's own loop over the machine's BLAS; there is no kernel of ours for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence


def why_not(device: torch.device, dtype: torch.dtype, hidden: int) -> str:
    """Why this implementation cannot run on such tensors; '' if it can."""
    return "" if device.type == "cpu" else f"the tensors are on {device.type}"


# Traced, torch's loop would be unrolled step by step; the compiler leaves nn.LSTM alone for the same reason.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def lstm_cpu(
    x: Tensor,  # [B, T, F]
    weights: Sequence[Tensor],
    lengths: Tensor | None = None,  # [B]
    h0: Tensor | None = None,  # [D, B, H]
    c0: Tensor | None = None,  # [D, B, H]
) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs and last states of one layer; ``lstm_ref`` says of what."""
    num_steps, both = x.shape[1], len(weights) == 8
    zeros = x.new_zeros(len(weights) // 4, len(x), weights[1].shape[1])
    h0, c0 = (zeros if state is None else state for state in (h0, c0))
    if lengths is None:
        return torch.lstm(x, (h0, c0), list(weights), True, 1, 0.0, False, both, True)
    # Packing refuses empty sequences: they are read as one step, which is then left out of every result.
    packed = pack_padded_sequence(x, lengths.clamp(min=1), batch_first=True, enforce_sorted=False)
    order, back = packed.sorted_indices, packed.unsorted_indices
    states = (h0[:, order], c0[:, order])
    data, h_n, c_n = torch.lstm(packed.data, packed.batch_sizes, states, list(weights), True, 1, 0.0, False, both)
    out, _ = pad_packed_sequence(
        PackedSequence(data, packed.batch_sizes, order, back), batch_first=True, total_length=num_steps
    )
    full = (lengths > 0)[:, None]
    return (
        torch.where(full[..., None], out, 0.0),
        torch.where(full, h_n[:, back], h0),
        torch.where(full, c_n[:, back], c0),
    )
