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


def _cloud(points: Tensor, lengths: Tensor | None) -> bytes:
    address = 0 if lengths is None else lengths.data_ptr()
    return struct.pack("PPixxxx", points.data_ptr(), address, points.shape[1])


def search(x: Tensor, y: Tensor, x_lengths: Tensor | None, y_lengths: Tensor | None) -> Nearest:
    """The nearest points of both directions; ``chamfer_ref`` says which."""
    x, y = x.detach().float().contiguous(), y.detach().float().contiguous()
    x_lengths, y_lengths = (t if t is None else t.long().contiguous() for t in (x_lengths, y_lengths))
    keys = [torch.full(t.shape[:2], NO_KEY, dtype=torch.int64, device=x.device) for t in (x, y)]
    distances = [torch.empty(t.shape[:2], dtype=torch.float32, device=x.device) for t in (x, y)]
    indices = [torch.empty_like(key) for key in keys]
    clouds = [_cloud(x, x_lengths), _cloud(y, y_lengths)]
    most, sides = max(x.shape[1], y.shape[1]), 2 * len(x)
    shares = num_shares(x.shape[1], y.shape[1], len(x), _multiprocessors(x.device))
    launch = functools.partial(launching.launch, program(), threads=THREADS, device=x.device)
    grid = (-(-most // (THREADS * QUERIES)), shares, sides)
    launch("chamfer_fwd_kernel", grid, arguments=[*clouds, *keys])
    found = [struct.pack("PP", d.data_ptr(), i.data_ptr()) for d, i in zip(distances, indices, strict=True)]
    launch("chamfer_unpack_kernel", (-(-most // THREADS), 1, sides), arguments=[*clouds, *keys, *found])
    return Nearest(distances[0], distances[1], indices[0], indices[1])


def gradients(x: Tensor, y: Tensor, found: Nearest, v_x: Tensor, v_y: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients by x and y in float32, from those by the distances [B, N] and [B, M]."""
    x, y = x.detach().float().contiguous(), y.detach().float().contiguous()
    v_x, v_y = v_x.float().contiguous(), v_y.float().contiguous()
    grads = torch.zeros_like(x), torch.zeros_like(y)
    wanted = [
        struct.pack("PPP", *(t.data_ptr() for t in side))
        for side in ((found.x_index, v_x, grads[0]), (found.y_index, v_y, grads[1]))
    ]
    grid = (-(-max(x.shape[1], y.shape[1]) // THREADS), 1, 2 * len(x))
    arguments = [_cloud(x, None), _cloud(y, None), *wanted]
    launching.launch(program(), "chamfer_bwd_kernel", grid, THREADS, arguments, x.device)
    return grads
