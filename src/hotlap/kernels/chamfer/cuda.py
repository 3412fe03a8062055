"""Nearest points on an NVIDIA card: three kernels (``chamfer.cu``), compiled at run time by NVRTC."""

from __future__ import annotations

import functools
import struct
from pathlib import Path

import torch
from torch import Tensor

from hotlap.kernels import launch as launching
from hotlap.kernels.chamfer.reference import Nearest
from hotlap.kernels.nvrtc import Program, why_no_compiler

THREADS, QUERIES = 128, 2
BLOCKS_EACH = 8
"""Blocks that a multiprocessor should have before the targets of a query are no longer shared between blocks."""
MIN_SHARE = 512
"""Targets of a block, at the least: fewer would cost more in reading the queries than they save."""
NO_KEY = -1
"""All bits set: more than any distance with its index."""
SEARCH = struct.Struct("PPi4xPPi4x" + "PP" + "PPPP")
"""Search of ``chamfer.cu``: two clouds, their keys, what is found. One argument is cheaper to hand over than eight."""
SLOPE = struct.Struct("PPi4xPPi4x" + "PPqqP" * 2)
"""Slope of ``chamfer.cu``: two clouds, and for each its indices, gradients with their strides, and where to add."""


def why_not(device: torch.device, dtype: torch.dtype) -> str:
    """Why this implementation cannot search such clouds; '' if it can."""
    if device.type != "cuda":
        return f"the tensors are on {device.type}"
    if dtype == torch.float64:
        return "it computes in float32"
    return why_no_compiler()


@functools.cache
def program() -> Program:
    """The kernels."""
    source = launching.read_source(Path(__file__).with_name("chamfer.cu"))
    return Program(name="chamfer.cu", source=source, macros=(("THREADS", THREADS), ("QUERIES", QUERIES)))


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def num_shares(num_x: int, num_y: int, batch: int, multiprocessors: int) -> int:
    """How many blocks share the targets of a query: as many as leave no multiprocessor idle."""
    blocks = 2 * batch * -(-max(num_x, num_y) // (THREADS * QUERIES))
    wanted = -(-BLOCKS_EACH * multiprocessors // max(1, blocks))
    return max(1, min(wanted, max(num_x, num_y) // MIN_SHARE))


def search(x: Tensor, y: Tensor, x_lengths: Tensor | None, y_lengths: Tensor | None) -> Nearest:
    """The nearest points of both directions; ``chamfer_ref`` says which."""
    x, y = x.float().contiguous(), y.float().contiguous()
    x_lengths, y_lengths = (t if t is None else t.long().contiguous() for t in (x_lengths, y_lengths))
    (batch, num_x, _), num_y, card = x.shape, y.shape[1], x.device
    keys = torch.full((batch * (num_x + num_y),), NO_KEY, dtype=torch.int64, device=card)
    x_distance, y_distance = (torch.empty((batch, n), dtype=torch.float32, device=card) for n in (num_x, num_y))
    x_index, y_index = (torch.empty((batch, n), dtype=torch.int64, device=card) for n in (num_x, num_y))
    found = Nearest(x_distance, y_distance, x_index, y_index)
    given = SEARCH.pack(
        *_cloud(x, x_lengths), *_cloud(y, y_lengths), keys.data_ptr(), keys.data_ptr() + 8 * batch * num_x,
        x_distance.data_ptr(), x_index.data_ptr(), y_distance.data_ptr(), y_index.data_ptr(),
    )  # fmt: skip
    most, sides = max(num_x, num_y), 2 * batch
    shares = num_shares(num_x, num_y, batch, _multiprocessors(card))
    grid = (-(-most // (THREADS * QUERIES)), shares, sides)
    launching.launch(program(), "chamfer_fwd_kernel", grid, THREADS, [given], card)
    launching.launch(program(), "chamfer_unpack_kernel", (-(-most // THREADS), 1, sides), THREADS, [given], card)
    return found


def gradients(x: Tensor, y: Tensor, found: Nearest, v_x: Tensor, v_y: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients by x and y in float32, from those by the distances [B, N] and [B, M]."""
    x, y, v_x, v_y = x.float().contiguous(), y.float().contiguous(), v_x.float(), v_y.float()
    grad_x, grad_y = torch.zeros_like(x), torch.zeros_like(y)
    given = SLOPE.pack(
        *_cloud(x, None), *_cloud(y, None),
        found.x_index.data_ptr(), v_x.data_ptr(), *v_x.stride(), grad_x.data_ptr(),
        found.y_index.data_ptr(), v_y.data_ptr(), *v_y.stride(), grad_y.data_ptr(),
    )  # fmt: skip
    grid = (-(-max(x.shape[1], y.shape[1]) // THREADS), 1, 2 * len(x))
    launching.launch(program(), "chamfer_bwd_kernel", grid, THREADS, [given], x.device)
    return grad_x, grad_y


def _cloud(points: Tensor, lengths: Tensor | None) -> tuple[int, int, int]:
    return points.data_ptr(), 0 if lengths is None else lengths.data_ptr(), points.shape[1]
