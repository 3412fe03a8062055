"""Dropout by samples on an NVIDIA card: its mask in one launch of CUDA C++, and torch's own operations for the rest.

It is called often in steps that wait for launches. A backward pass in Python would cost such a step more than the mask:
autograd's threads have to take the interpreter for it.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from hotlap.base.errors import KernelUnavailable
from hotlap.kernels import launch as launching
from hotlap.kernels.dropout.reference import mask_shape, threshold_of
from hotlap.kernels.nvrtc import Program, load_function, why_no_compiler

THREADS, PACK_BYTES = 256, 16
MAX_ELEMENTS = 2**31 - 1
"""The kernel counts in 32 bits."""
MAX_FACTORS = 2**23
"""Up to so many elements of float32, the mask is the factors themselves, four bytes each: one operation forward and one
backward, where steps wait for launches. Beyond, it is one byte an element, and memory counts."""
LAYOUT = struct.Struct("PPdIIii0P")
"""``Mask`` in dropout.cu; as in C, it is as long as a multiple of its widest member."""
SEEDS = struct.Struct("PIII0P")
"""``Seeds`` in dropout.cu."""
KERNELS = {
    torch.bool: "dropout_keep_kernel",
    torch.float32: "dropout_factor_kernel",
    torch.int32: "dropout_seeds_kernel",
}
"""By the type of what they write: whether elements stay, their factors, the samples' seeds."""
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

    functions: dict[torch.dtype, Any] = field(default_factory=dict)
    """What is launched, by the type of what it writes."""
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
            functions = {dtype: load_function(device, program(), name) for dtype, name in KERNELS.items()}
    except (KernelUnavailable, ImportError, OSError, RuntimeError) as error:
        # A bindings package without its libraries, or a cache that cannot be written: the reference needs neither.
        return _Loaded(why_not=f"the kernel cannot be loaded ({str(error).rstrip('.')})")
    return _Loaded(functions=functions)


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
    """What ``keyed_dropout_ref`` gives, bit for bit where ``x`` is finite; the mask is kept for the backward pass."""
    plan = _planned(x.shape, x.dtype, p, by_channel, MAX_FACTORS)
    mask = torch.empty(plan.shape, dtype=plan.kind, device=x.device)
    if plan.elements:
        width = plan.elements // seeds.shape[0]
        numbers = plan.scale, plan.elements, width, start, plan.threshold
        _launch(x.device, plan.kind, plan.blocks, LAYOUT.pack(mask.data_ptr(), seeds.data_ptr(), *numbers))
    # ``x`` first: the output then lies in memory as it does.
    return x * mask if plan.kind is torch.float32 else x * mask * plan.scale


class _Plan(NamedTuple):
    """What follows from the shape alone."""

    shape: list[int]
    kind: torch.dtype
    elements: int
    blocks: int
    scale: float
    threshold: int


@functools.lru_cache(maxsize=256)
def _planned(shape: torch.Size, dtype: torch.dtype, p: float, by_channel: bool, max_factors: int) -> _Plan:
    masked = mask_shape(shape, by_channel)
    count = math.prod(masked)
    kind = torch.float32 if dtype == torch.float32 and count <= max_factors else torch.bool
    blocks = -(-count * kind.itemsize // (THREADS * PACK_BYTES))
    return _Plan(masked, kind, count, blocks, 1 / (1 - p), threshold_of(p))


def write_seeds(out: Tensor, first: int, step: int) -> bool:  # [n] int32 on a card
    """Fills ``out`` with the seeds of samples from ``first`` on, in one launch; False where no kernel can be had."""
    if _loaded(out.device.index).why_not:
        return False
    num = out.shape[0]  # len() of a tensor is a function of Python, and every step comes here
    if num:
        given = SEEDS.pack(out.data_ptr(), first & 0xFFFFFFFF, num, step & 0xFFFFFFFF)
        _launch(out.device, torch.int32, -(-num // THREADS), given)
    return True


def _launch(device: torch.device, kind: torch.dtype, blocks: int, argument: bytes) -> None:
    """Runs the kernel that writes such numbers on torch's stream."""
    ctypes.memmove(_ROOM.argument, argument, len(argument))
    launching.enqueue(_LOADED[device.index].functions[kind], (blocks, 1, 1), THREADS, _ROOM.address, device.index)


class _Room(threading.local):
    """Where a thread's launches have their argument: the driver has copied it when a launch returns."""

    def __init__(self) -> None:
        self.argument = ctypes.create_string_buffer(max(LAYOUT.size, SEEDS.size))
        self._pointer = ctypes.c_void_p(ctypes.addressof(self.argument))
        self.address = ctypes.addressof(self._pointer)


_ROOM = _Room()
