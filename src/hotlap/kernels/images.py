"""What kernels for images [n, C, H, W] share: where Triton can run, and how many warps stream them."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

WARPS = 8
"""Of a Triton program that streams images."""


def why_not_triton(device: torch.device, dtype: torch.dtype) -> str:
    """Why Triton programs cannot run on such images; '' if they can."""
    if find_spec("triton") is None:
        return "triton is not installed"
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"the tensors are on {device.type} and TRITON_INTERPRET is not 1"
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"{str(dtype).removeprefix('torch.')} is not among float32, float16 and bfloat16"
    return ""
