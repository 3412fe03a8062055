"""What one LSTM layer computes, step by step in plain torch: the truth that every implementation is held to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def lstm_ref(
    x: Tensor,  # [B, T, F]
    weights: Sequence[Tensor],  # for each direction [4H, F], [4H, H], [4H], [4H]; gates in the order i, f, g, o
    lengths: Tensor | None = None,  # [B] whole numbers; None: every sequence has T steps
    h0: Tensor | None = None,  # [D, B, H]; None: zeros
    c0: Tensor | None = None,  # [D, B, H]; None: zeros
) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs [B, T, D * H] and the last states h_n and c_n [D, B, H] of one layer, as packed sequences give them.

    Steps at or after a sequence's length put out zeros and leave its state alone; the second direction reads from the
    last step to the first. Differentiable in everything but ``lengths``.
    """
    num_batch, num_steps, _ = x.shape
    num_directions, hidden = len(weights) // 4, weights[1].shape[1]
    zeros = x.new_zeros(num_directions, num_batch, hidden)
    h0, c0 = (zeros if state is None else state for state in (h0, c0))
    outputs, last_h, last_c = [], [], []
    for direction in range(num_directions):
        w_ih, w_hh, b_ih, b_hh = weights[4 * direction : 4 * direction + 4]
        h, c = h0[direction], c0[direction]
        out = [zeros[0]] * num_steps
        for t in range(num_steps) if direction == 0 else reversed(range(num_steps)):
            i, f, g, o = (x[:, t] @ w_ih.T + b_ih + h @ w_hh.T + b_hh).chunk(4, dim=1)
            c_next = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h_next = torch.sigmoid(o) * torch.tanh(c_next)
            if lengths is not None:
                alive = (t < lengths)[:, None]
                out[t] = torch.where(alive, h_next, 0.0)
                h, c = torch.where(alive, h_next, h), torch.where(alive, c_next, c)
            else:
                out[t], h, c = h_next, h_next, c_next
        outputs.append(torch.stack(out, dim=1) if out else x.new_zeros(num_batch, 0, hidden))
        last_h.append(h)
        last_c.append(c)
    return torch.cat(outputs, dim=2), torch.stack(last_h), torch.stack(last_c)
