"""What kernels for images [n, C, H, W] share: how images lie in memory, and where Triton can run."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch
from torch import Tensor

WARPS = 8
"""Of a Triton program that streams images."""


def layout_of(x: Tensor) -> torch.memory_format:
    """How the numbers of an image lie; what has gaps is put together in torch's usual order."""
    last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


def as_layout(x: Tensor, layout: torch.memory_format) -> Tensor:
    return x.contiguous(memory_format=layout)


def why_not_triton(device: torch.device, dtype: torch.dtype) -> str:
    """Why Triton programs cannot run on such images; '' if they can."""
    if find_spec("triton") is None:
        return "triton is not installed"
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"the tensors are on {device.type} and TRITON_INTERPRET is not 1"
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"{str(dtype).removeprefix('torch.')} is not among float32, float16 and bfloat16"
    return ""
