"""The mixing of neighbours by Triton programs: gathered on a mesh, multiplied whole on a small graph."""

from __future__ import annotations

import functools
import os
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from hotlap.kernels.graph_conv.support import Support

GRAPHS = 8
"""Small graphs that one program takes, so that it reads their support once."""


def why_not(device: torch.device, dtype: torch.dtype) -> str:
    """Why this implementation cannot run on such tensors; '' if it can."""
    if find_spec("triton") is None:
        return "triton is not installed"
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"the tensors are on {device.type} and TRITON_INTERPRET is not 1"
    if device.type != "cuda" and dtype == torch.bfloat16:
        return "Triton's interpreter multiplies bfloat16 as if it were whole numbers"
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"{str(dtype).removeprefix('torch.')} is not among float32, float16 and bfloat16"
    return ""


def mix(
    y: Tensor, bias: Tensor, residual: Tensor | None, support: Support, relu: bool, share: float, out: Tensor,
    positive: Tensor,
) -> None:  # fmt: skip
    """Fills ``out`` [R, V, O] from y [R, V, 2 O] and, unless it is empty, ``positive``."""
    kernel, grid, table, settings = _plan("fwd", out, support)
    more = y if residual is None else residual.contiguous()
    flags = {"RELU": relu, "RESIDUAL": residual is not None, "SAVE": positive.numel() > 0}
    sizes = (len(out), *out.shape[1:]) if support.dense.numel() else out.shape[1:]
    kernel[grid](y.contiguous(), bias, more, *table, out, positive, *sizes, share, **flags, **settings)


def unmix(v_out: Tensor, positive: Tensor, support: Support, share: float, v_y: Tensor) -> None:
    """Fills ``v_y`` [R, V, 2 O], the gradient by y, from that by the result [R, V, O]."""
    kernel, grid, table, settings = _plan("bwd", v_out, support)
    sizes = (len(v_out), *v_out.shape[1:]) if support.dense.numel() else v_out.shape[1:]
    kernel[grid](v_out.contiguous(), positive, *table, v_y, *sizes, share, MASKED=positive.numel() > 0, **settings)


def _plan(direction: str, out: Tensor, support: Support) -> tuple[Any, tuple[int, int], tuple[Tensor, ...], dict]:
    """The kernel, its grid, the support's tensors and the sizes of its blocks."""
    rows, vertices, width = out.shape
    block_o = max(16, min(64, 1 << (width - 1).bit_length()))
    if support.dense.numel():
        allowed = torch.backends.cuda.matmul.fp32_precision == "tf32"
        settings = {
            "SPLIT": out.dtype != torch.float32,
            "PRECISION": "tf32" if allowed else "ieee",
            "GRAPHS": GRAPHS,
            "BLOCK_V": max(16, 1 << (vertices - 1).bit_length()),
            "BLOCK_O": block_o,
        }
        grid = (-(-rows // GRAPHS), -(-width // block_o))
        return _kernels()[f"local_{direction}"], grid, (support.dense,), settings
    most = support.columns.shape[1]
    block_v = 32
    settings = {"K": most, "BLOCK_V": block_v, "BLOCK_O": block_o}
    grid = (rows * -(-vertices // block_v), -(-width // block_o))
    return _kernels()[f"mesh_{direction}"], grid, (support.columns, support.values), settings


@functools.cache
def _kernels() -> dict[str, Any]:
    from hotlap.kernels.graph_conv import triton_kernels as kernels

    return {
        "mesh_fwd": kernels.mesh_fwd_kernel,
        "mesh_bwd": kernels.mesh_bwd_kernel,
        "local_fwd": kernels.local_fwd_kernel,
        "local_bwd": kernels.local_bwd_kernel,
    }
