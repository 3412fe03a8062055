"""A bidirectional LSTM that reads padded texts as if there were no padding."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hotlap.data.characters import PAD
from hotlap.kernels.lstm.op import lstm

_CLOSED = -3e4  # an input gate this far down is exactly 0 in every float type, float16 included
_GATE_COLUMNS = 8  # one is enough; eight keep the matrix's rows aligned for the fast GEMMs


class BiLSTM(nn.Module):
    """Class scores for each text, from the forward state at its last character and the backward state at its first.

    The parameters are those of a plain ``nn.LSTM`` (``lstm.weight_ih_l0`` and so on), and the result is what packing
    would give. Packing, though, needs the lengths on the host and gives every batch its own shapes. Here each layer is
    one call of fixed shape: the layer's input gets a column that is 1 on padding and drives the input gates to exactly
    0 there, so that the backward direction, which meets the padding first, arrives at the last character with the
    state it would start from, zero. Whatever is computed on padding has no gradient and is never read.

    With a ``recurrence`` other than ``torch``, each layer is a call of :func:`hotlap.kernels.lstm.op.lstm` with that
    implementation, which knows the lengths itself. Parameters and results are the same.
    """

    def __init__(
        self,
        *,
        classes: int,
        vocabulary: int,
        embedding: int = 128,
        hidden: int = 256,
        layers: int = 2,
        dropout: float = 0.5,
        recurrence: str = "torch",
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.recurrence = recurrence
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=PAD)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, classes)

    def use_kernels(self) -> None:
        """From now on the layers are run by the first kernel that can run where they are."""
        self.recurrence = "auto"

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:  # [n, L], [n] -> [n, classes]
        length, hidden = tokens.shape[1], self.lstm.hidden_size
        padding = torch.arange(length, device=tokens.device) >= lengths[:, None]
        x = self.embedding(tokens)
        for layer in range(self.lstm.num_layers):
            if layer > 0:
                x = self.dropout(x)
            if self.recurrence == "torch":
                x = self._read_both_ways(layer, x, padding)
            else:
                x, _, _ = lstm(x, _layer_weights(self.lstm, layer), lengths, impl=self.recurrence)
        last = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, hidden)
        forward_end = x[..., :hidden].gather(1, last)[:, 0]
        backward_end = x[:, 0, hidden:]
        return self.head(torch.cat([forward_end, backward_end], dim=1))

    # Traced, the recurrence would be unrolled step by step; the compiler leaves nn.LSTM alone for the same reason.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _read_both_ways(self, layer: int, x: Tensor, padding: Tensor) -> Tensor:  # [n, L, F], [n, L]
        """The outputs [n, L, 2 * hidden] of one layer, its state held at zero until the first character either way."""
        gate = padding[..., None].to(x.dtype)
        x = torch.cat([x, F.pad(gate, (0, _GATE_COLUMNS - 1))], dim=2)
        weights = _gated_weights(self.lstm, layer)
        state = x.new_zeros(2, x.shape[0], self.lstm.hidden_size)
        out, _, _ = torch.lstm(x, (state, state), weights, True, 1, 0.0, self.training, True, True)
        return out


def _layer_weights(lstm: nn.LSTM, layer: int) -> list[Tensor]:
    """The layer's eight parameters, those of the forward direction first."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return [getattr(lstm, f"{name}_l{layer}{direction}") for direction in ("", "_reverse") for name in names]


def _gated_weights(lstm: nn.LSTM, layer: int) -> list[Tensor]:
    """The layer's eight parameters, with the columns that close the input gates.

    They are views of one buffer in the order cuDNN keeps them (all matrices, then all biases), which spares it a copy.
    """
    hidden = lstm.hidden_size
    matrices: list[Tensor] = []
    biases: list[Tensor] = []
    plain = _layer_weights(lstm, layer)
    for w_ih, w_hh, b_ih, b_hh in (plain[:4], plain[4:]):
        columns = torch.zeros(4 * hidden, _GATE_COLUMNS, dtype=w_ih.dtype, device=w_ih.device)
        columns[:hidden, 0] = _CLOSED  # the rows of the input gate come first
        matrices += [torch.cat([w_ih, columns], dim=1), w_hh]
        biases += [b_ih, b_hh]
    parts = matrices + biases
    buffer = torch.cat([part.reshape(-1) for part in parts])
    flat = buffer.split([part.numel() for part in parts])
    w_f, u_f, w_b, u_b, *b = (piece.view_as(part) for piece, part in zip(flat, parts, strict=True))
    return [w_f, u_f, b[0], b[1], w_b, u_b, b[2], b[3]]
