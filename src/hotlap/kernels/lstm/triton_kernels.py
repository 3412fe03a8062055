"""The Triton programs of the LSTM layer's recurrence; imported at the first call only, since they need Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _tanh(x):
    """From the exponential of -2|x|, which cannot overflow."""
    e = tl.exp(-2.0 * tl.abs(x))
    y = (1.0 - e) / (1.0 + e)
    # The quotient cancels near 0; there the series is exact to float32.
    x2 = x * x
    series = x * (1.0 + x2 * (-0.33333334 + x2 * (0.13333334 + x2 * (-0.05396825 + x2 * 0.02186949))))
    return tl.where(tl.abs(x) < 0.15, series, tl.where(x < 0, -y, y))


@triton.jit
def lstm_fwd_kernel(
    gates, w_hh, state, c0, lengths, out, h_n, c_n, acts, cells,
    num_batch, num_steps, num_directions, hidden,
    SAVE: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    direction = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    units = tl.arange(0, BLOCK_H)
    steps_k = tl.arange(0, BLOCK_K)
    row_in, unit_in = rows < num_batch, units < hidden
    inside = row_in[:, None] & unit_in[None, :]
    length = tl.load(lengths + rows, mask=row_in, other=0)[:, None]
    of_state = (direction * num_batch + rows)[:, None] * hidden + units[None, :]
    state_size = num_directions * num_batch * hidden
    w_hh += direction * 4 * hidden * hidden
    h = tl.load(state + of_state, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(c0 + of_state, mask=inside, other=0.0)
    for step in range(num_steps):
        t = step if direction == 0 else num_steps - 1 - step
        read = state + (step % 2) * state_size + (direction * num_batch + rows)[:, None] * hidden
        g_i = tl.zeros((BLOCK_B, BLOCK_H), dtype=tl.float32)
        g_f = tl.zeros((BLOCK_B, BLOCK_H), dtype=tl.float32)
        g_g = tl.zeros((BLOCK_B, BLOCK_H), dtype=tl.float32)
        g_o = tl.zeros((BLOCK_B, BLOCK_H), dtype=tl.float32)
        for first in range(0, hidden, BLOCK_K):
            k = first + steps_k
            h_k = tl.load(read + k[None, :], mask=row_in[:, None] & (k < hidden)[None, :], other=0.0)
            w = w_hh + units[None, :] * hidden + k[:, None]
            w_in = (k < hidden)[:, None] & unit_in[None, :]
            size = hidden * hidden
            g_i = tl.dot(h_k, tl.load(w, mask=w_in, other=0.0), g_i, input_precision=PRECISION)
            g_f = tl.dot(h_k, tl.load(w + size, mask=w_in, other=0.0), g_f, input_precision=PRECISION)
            g_g = tl.dot(h_k, tl.load(w + 2 * size, mask=w_in, other=0.0), g_g, input_precision=PRECISION)
            g_o = tl.dot(h_k, tl.load(w + 3 * size, mask=w_in, other=0.0), g_o, input_precision=PRECISION)
        of_step = ((rows * num_steps + t) * num_directions + direction).to(tl.int64)[:, None] * hidden + units[None, :]
        alive = (t < length) & inside
        g_i = _sigmoid(g_i + tl.load(gates + 4 * of_step, mask=alive, other=0.0).to(tl.float32))
        g_f = _sigmoid(g_f + tl.load(gates + 4 * of_step + 1, mask=alive, other=0.0).to(tl.float32))
        g_g = _tanh(g_g + tl.load(gates + 4 * of_step + 2, mask=alive, other=0.0).to(tl.float32))
        g_o = _sigmoid(g_o + tl.load(gates + 4 * of_step + 3, mask=alive, other=0.0).to(tl.float32))
        c = tl.where(alive, g_f * c + g_i * g_g, c)
        h_next = g_o * _tanh(c)
        h = tl.where(alive, h_next, h)
        tl.store(state + ((step + 1) % 2) * state_size + of_state, h.to(state.dtype.element_ty), mask=inside)
        tl.store(out + of_step, tl.where(alive, h_next, 0.0).to(out.dtype.element_ty), mask=inside)
        if SAVE:
            tl.store(acts + 4 * of_step, g_i.to(acts.dtype.element_ty), mask=inside)
            tl.store(acts + 4 * of_step + 1, g_f.to(acts.dtype.element_ty), mask=inside)
            tl.store(acts + 4 * of_step + 2, g_g.to(acts.dtype.element_ty), mask=inside)
            tl.store(acts + 4 * of_step + 3, g_o.to(acts.dtype.element_ty), mask=inside)
            tl.store(cells + of_step, c, mask=inside)
        # The next step reads what every thread of this program has just written.
        tl.debug_barrier()
    tl.store(h_n + of_state, h.to(h_n.dtype.element_ty), mask=inside)
    tl.store(c_n + of_state, c, mask=inside)


@triton.jit
def lstm_bwd_kernel(
    d_out, d_h_n, d_c_n, acts, cells, w_hh, c0, lengths, d_gates, d_h0, d_c0,
    num_batch, num_steps, num_directions, hidden,
    BLOCK_B: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    direction = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    units = tl.arange(0, BLOCK_H)
    steps_k = tl.arange(0, BLOCK_K)
    row_in, unit_in = rows < num_batch, units < hidden
    inside = row_in[:, None] & unit_in[None, :]
    length = tl.load(lengths + rows, mask=row_in, other=0)[:, None]
    of_state = (direction * num_batch + rows)[:, None] * hidden + units[None, :]
    size = hidden * hidden
    w_hh += direction * 4 * size
    d_h = tl.load(d_h_n + of_state, mask=inside, other=0.0).to(tl.float32)
    d_c = tl.load(d_c_n + of_state, mask=inside, other=0.0)
    start = tl.load(c0 + of_state, mask=inside, other=0.0)
    for step in range(num_steps):
        t = num_steps - 1 - step if direction == 0 else step
        before = t - 1 if direction == 0 else t + 1
        of_rows = ((rows * num_steps + t) * num_directions + direction).to(tl.int64)[:, None] * hidden
        of_step = of_rows + units[None, :]
        of_before = ((rows * num_steps + before) * num_directions + direction).to(tl.int64)[:, None] * hidden
        alive = (t < length) & inside
        # Going backward in time, the reverse direction starts at the last step of each sequence.
        step_before = before + tl.zeros_like(length)
        has_before = (step_before >= 0) & (step_before < length) & inside
        a_i = tl.load(acts + 4 * of_step, mask=alive, other=0.0).to(tl.float32)
        a_f = tl.load(acts + 4 * of_step + 1, mask=alive, other=0.0).to(tl.float32)
        a_g = tl.load(acts + 4 * of_step + 2, mask=alive, other=0.0).to(tl.float32)
        a_o = tl.load(acts + 4 * of_step + 3, mask=alive, other=0.0).to(tl.float32)
        c = tl.load(cells + of_step, mask=alive, other=0.0)
        c_before = tl.load(cells + of_before + units[None, :], mask=has_before, other=0.0)
        c_before = tl.where(has_before, c_before, start)
        d_y = tl.load(d_out + of_step, mask=alive, other=0.0).to(tl.float32)
        tanh_c = _tanh(c)
        d_step = tl.where(alive, d_h + d_y, 0.0)
        d_cell = d_c + d_step * a_o * (1.0 - tanh_c * tanh_c)
        d_live = tl.where(alive, d_cell, 0.0)
        kind = d_gates.dtype.element_ty
        tl.store(d_gates + 4 * of_step, (d_live * a_g * a_i * (1.0 - a_i)).to(kind), mask=inside)
        tl.store(d_gates + 4 * of_step + 1, (d_live * c_before * a_f * (1.0 - a_f)).to(kind), mask=inside)
        tl.store(d_gates + 4 * of_step + 2, (d_live * a_i * (1.0 - a_g * a_g)).to(kind), mask=inside)
        tl.store(d_gates + 4 * of_step + 3, (d_step * tanh_c * a_o * (1.0 - a_o)).to(kind), mask=inside)
        d_c = tl.where(alive, d_cell * a_f, d_c)
        # The product below reads what every thread of this program has just written.
        tl.debug_barrier()
        d_next = tl.zeros((BLOCK_B, BLOCK_H), dtype=tl.float32)
        for first in range(0, hidden, BLOCK_K):
            k = first + steps_k
            g_in = row_in[:, None] & (k < hidden)[None, :]
            g = d_gates + 4 * (of_rows + k[None, :])
            w = w_hh + k[:, None] * hidden + units[None, :]
            w_in = (k < hidden)[:, None] & unit_in[None, :]
            for gate in range(4):
                d_k = tl.load(g + gate, mask=g_in, other=0.0)
                w_k = tl.load(w + gate * size, mask=w_in, other=0.0)
                d_next = tl.dot(d_k, w_k, d_next, input_precision=PRECISION)
        d_h = tl.where(alive, d_next, d_h)
    tl.store(d_h0 + of_state, d_h.to(d_h0.dtype.element_ty), mask=inside)
    tl.store(d_c0 + of_state, d_c, mask=inside)
