"""The Triton programs that mix neighbours; imported at the first call only, since they need Triton.

The mesh kernels gather a vertex's few neighbours. The local ones multiply a graph of up to 64 vertices by its whole
support on tensor cores, several graphs one after another so that the support is read once.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _finish(z, residual, place, inside, positive, share,
            RELU: tl.constexpr, RESIDUAL: tl.constexpr, SAVE: tl.constexpr):  # fmt: skip
    """share * (relu(z) + residual), and where z is positive."""
    if SAVE:
        tl.store(positive + place, (z > 0).to(tl.int8), mask=inside)
    if RELU:
        z = tl.maximum(z, 0.0)
    if RESIDUAL:
        z += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    return z * share


@triton.jit
def mesh_fwd_kernel(
    y, bias, residual, columns, values, out, positive, num_vertices, width, share,
    K: tl.constexpr, RELU: tl.constexpr, RESIDUAL: tl.constexpr, SAVE: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(num_vertices, BLOCK_V)
    row = (tl.program_id(0) // blocks).to(tl.int64) * num_vertices
    vertex = (tl.program_id(0) % blocks) * BLOCK_V + tl.arange(0, BLOCK_V)
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    real = vertex < num_vertices
    inside = real[:, None] & (o < width)[None, :]
    z = tl.load(y + (row + vertex)[:, None] * (2 * width) + o[None, :], mask=inside, other=0.0).to(tl.float32)
    z += tl.load(bias + o, mask=o < width, other=0.0).to(tl.float32)[None, :]
    for k in tl.static_range(K):
        column = tl.load(columns + vertex * K + k, mask=real, other=0)
        weight = tl.load(values + vertex * K + k, mask=real, other=0.0)
        there = y + (row + column)[:, None] * (2 * width) + width + o[None, :]
        z += weight[:, None] * tl.load(there, mask=inside, other=0.0).to(tl.float32)
    place = (row + vertex)[:, None] * width + o[None, :]
    z = _finish(z, residual, place, inside, positive, share, RELU, RESIDUAL, SAVE)
    tl.store(out + place, z.to(out.dtype.element_ty), mask=inside)


@triton.jit
def mesh_bwd_kernel(
    v_out, positive, columns, values, v_y, num_vertices, width, share,
    K: tl.constexpr, MASKED: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(num_vertices, BLOCK_V)
    row = (tl.program_id(0) // blocks).to(tl.int64) * num_vertices
    vertex = (tl.program_id(0) % blocks) * BLOCK_V + tl.arange(0, BLOCK_V)
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    real = vertex < num_vertices
    inside = real[:, None] & (o < width)[None, :]
    place = (row + vertex)[:, None] * width + o[None, :]
    own = tl.load(v_out + place, mask=inside, other=0.0).to(tl.float32) * share
    if MASKED:
        own = tl.where(tl.load(positive + place, mask=inside, other=0) != 0, own, 0.0)
    others = tl.zeros((BLOCK_V, BLOCK_O), dtype=tl.float32)
    for k in tl.static_range(K):
        column = tl.load(columns + vertex * K + k, mask=real, other=0)
        weight = tl.load(values + vertex * K + k, mask=real, other=0.0)
        there = (row + column)[:, None] * width + o[None, :]
        v = tl.load(v_out + there, mask=inside, other=0.0).to(tl.float32) * share
        if MASKED:
            v = tl.where(tl.load(positive + there, mask=inside, other=0) != 0, v, 0.0)
        others += weight[:, None] * v
    pair = (row + vertex)[:, None] * (2 * width) + o[None, :]
    kind = v_y.dtype.element_ty
    tl.store(v_y + pair, own.to(kind), mask=inside)
    tl.store(v_y + pair + width, others.to(kind), mask=inside)


@triton.jit
def _multiply(support, y, SPLIT: tl.constexpr, PRECISION: tl.constexpr):
    """The support [N, N] in float32 times y [N, O]; in 16 bits as the sum of its rounded self and of what that left."""
    if SPLIT:
        near = support.to(y.dtype)
        rest = (support - near.to(tl.float32)).to(y.dtype)
        product = tl.dot(rest, y, tl.dot(near, y))
    else:
        product = tl.dot(support, y, input_precision=PRECISION)
    return product


@triton.jit(do_not_specialize=["num_rows"])
def local_fwd_kernel(
    y, bias, residual, support, out, positive, num_rows, num_vertices, width, share,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr, SAVE: tl.constexpr, SPLIT: tl.constexpr, PRECISION: tl.constexpr,
    GRAPHS: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    v = tl.arange(0, BLOCK_V)
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    real = v < num_vertices
    square = real[:, None] & real[None, :]
    matrix = tl.load(support + v[:, None] * num_vertices + v[None, :], mask=square, other=0.0)
    offset = tl.load(bias + o, mask=o < width, other=0.0).to(tl.float32)[None, :]
    for graph in range(GRAPHS):
        row = tl.program_id(0) * GRAPHS + graph
        inside = (v < tl.where(row < num_rows, num_vertices, 0))[:, None] & (o < width)[None, :]
        vertex = row.to(tl.int64) * num_vertices + v
        pair = vertex[:, None] * (2 * width) + o[None, :]
        own = tl.load(y + pair, mask=inside, other=0.0).to(tl.float32)
        others = tl.load(y + pair + width, mask=inside, other=0.0)
        z = own + offset + _multiply(matrix, others, SPLIT, PRECISION)
        place = vertex[:, None] * width + o[None, :]
        z = _finish(z, residual, place, inside, positive, share, RELU, RESIDUAL, SAVE)
        tl.store(out + place, z.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def local_bwd_kernel(
    v_out, positive, support, v_y, num_rows, num_vertices, width, share,
    MASKED: tl.constexpr, SPLIT: tl.constexpr, PRECISION: tl.constexpr,
    GRAPHS: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    v = tl.arange(0, BLOCK_V)
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    real = v < num_vertices
    square = real[:, None] & real[None, :]
    matrix = tl.load(support + v[:, None] * num_vertices + v[None, :], mask=square, other=0.0)
    kind = v_y.dtype.element_ty
    for graph in range(GRAPHS):
        row = tl.program_id(0) * GRAPHS + graph
        inside = (v < tl.where(row < num_rows, num_vertices, 0))[:, None] & (o < width)[None, :]
        vertex = row.to(tl.int64) * num_vertices + v
        place = vertex[:, None] * width + o[None, :]
        own = tl.load(v_out + place, mask=inside, other=0.0).to(tl.float32) * share
        if MASKED:
            own = tl.where(tl.load(positive + place, mask=inside, other=0) != 0, own, 0.0)
        others = _multiply(matrix, own.to(kind), SPLIT, PRECISION)
        pair = vertex[:, None] * (2 * width) + o[None, :]
        tl.store(v_y + pair, own.to(kind), mask=inside)
        tl.store(v_y + pair + width, others.to(kind), mask=inside)
