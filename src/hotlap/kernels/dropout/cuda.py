"""Dropout by samples on an NVIDIA card: its mask in one launch of CUDA C++, and torch's own operations for the rest.

It is called often in steps that wait for launches. A backward pass in Python would cost such a step more than the mask:
autograd's threads have to take the interpreter for it.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from hotlap.base.errors import KernelUnavailable
from hotlap.kernels import launch as launching
from hotlap.kernels.dropout.reference import mask_shape, threshold_of
from hotlap.kernels.nvrtc import Program, load_function, why_no_compiler

THREADS, PACK = 256, 16
MAX_ELEMENTS = 2**31 - 1
"""The kernel counts in 32 bits."""
LAYOUT = struct.Struct("PPIIii0P")
"""``Mask`` in dropout.cu; as in C, it is as long as a multiple of its widest member."""
_PLAIN = (Tensor, nn.Parameter)


def why_not(x: Tensor, seeds: Tensor) -> str:
    """Why this implementation cannot run on such tensors; '' if it can."""
    if torch.compiler.is_compiling():
        return "the compiler is reading the model"
    if x.device.type != "cuda":
        return f"the tensors are on {x.device.type}"
    if type(x) not in _PLAIN or x.layout is not torch.strided:
        return f"x is a {type(x).__name__} with the layout {str(x.layout).removeprefix('torch.')}"
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return "torch.func or forward-mode differentiation is at work"
    if x.numel() > MAX_ELEMENTS:
        return f"{x.numel()} elements are above {MAX_ELEMENTS}"
    if seeds.dtype != torch.int32 or seeds.device != x.device or not seeds.is_contiguous():
        return "the seeds are not int32, on the same card and without gaps"
    return _loaded(x.device.index).why_not


@dataclass(frozen=True, kw_only=True)
class _Loaded:
    """The kernel on one card."""

    function: Any = None
    """What is launched."""
    why_not: str = ""
    """Why there is none."""


_LOADED: dict[int, _Loaded] = {}


def _loaded(device: int) -> _Loaded:
    found = _LOADED.get(device)
    if found is not None:
        return found
    if torch.cuda.is_current_stream_capturing():
        return _Loaded(why_not="nothing can be loaded while a CUDA graph is captured")
    _LOADED[device] = found = _load(device)
    return found


def _load(device: int) -> _Loaded:
    if reason := why_no_compiler():
        return _Loaded(why_not=reason)
    try:
        with torch.cuda.device(device):
            function = load_function(device, program(), "keyed_dropout_kernel")
    except (KernelUnavailable, ImportError, OSError, RuntimeError) as error:
        # A bindings package without its libraries, or a cache that cannot be written: the reference needs neither.
        return _Loaded(why_not=f"the kernel cannot be loaded ({str(error).rstrip('.')})")
    return _Loaded(function=function)


def program() -> Program:
    """The source that is compiled."""
    return Program(name="dropout.cu", source=launching.read_source(Path(__file__).with_name("dropout.cu")))


def keyed_dropout_cuda(
    x: Tensor,  # [R, ...]
    seeds: Tensor,  # [N] int32
    start: int,
    p: float,
    *,
    by_channel: bool = False,
) -> Tensor:
    """What ``keyed_dropout_ref`` gives, bit for bit; a mask of one byte an element is kept for the backward pass."""
    keep = torch.empty(mask_shape(x, by_channel), dtype=torch.bool, device=x.device)
    count = math.prod(keep.shape)
    if count:
        blocks = -(-count // (THREADS * PACK))
        numbers = count, count // len(seeds), start, threshold_of(p)
        _launch(x.device, blocks, LAYOUT.pack(keep.data_ptr(), seeds.data_ptr(), *numbers))
    if not by_channel and not x.is_contiguous():
        keep = torch.empty_like(x, dtype=torch.bool).copy_(keep)  # so that the output lies in memory as x does
    return torch.where(keep, x, 0) * (1 / (1 - p))


def _launch(device: torch.device, blocks: int, mask: bytes) -> None:
    """Runs the kernel on torch's stream."""
    packed = launching.Packed((mask,))
    launching.enqueue(_LOADED[device.index].function, (blocks, 1, 1), THREADS, packed.address, device.index)
