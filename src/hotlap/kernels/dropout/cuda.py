"""Dropout by samples on an NVIDIA card: one launch forward and one backward, of the same kernel in CUDA C++.

It is called often in steps that wait for launches, so whatever can be known before a call is kept.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from hotlap.base.errors import KernelUnavailable
from hotlap.kernels import launch as launching
from hotlap.kernels.dropout.reference import keyed_dropout_ref, threshold_of
from hotlap.kernels.nvrtc import Program, load_function, why_no_compiler

THREADS, PACK_BYTES = 256, 16
DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float64: 3}
MAX_ELEMENTS = 2**31 - 1
"""The kernel counts in 32 bits."""
MAX_DIGITS = 3
"""Of a place in memory."""
LAYOUT = struct.Struct("PPPdIIiiIIIII0P")
"""``Dropout`` in dropout.cu; as in C, it is as long as a multiple of its widest member."""
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
    if x.dtype not in DTYPES:
        return f"{str(x.dtype).removeprefix('torch.')} is not among float32, float16, bfloat16 and float64"
    if x.numel() > MAX_ELEMENTS:
        return f"{x.numel()} elements are above {MAX_ELEMENTS}"
    if seeds.dtype != torch.int32 or seeds.device != x.device or not seeds.is_contiguous():
        return "the seeds are not int32, on the same card and without gaps"
    return _loaded(x.device.index, x.dtype).why_not


@dataclass(frozen=True, kw_only=True)
class _Loaded:
    """The kernel on one card for one number format."""

    function: Any = None
    """What is launched."""
    why_not: str = ""
    """Why there is none."""


_LOADED: dict[tuple[int, torch.dtype], _Loaded] = {}


def _loaded(device: int, dtype: torch.dtype) -> _Loaded:
    found = _LOADED.get((device, dtype))
    if found is not None:
        return found
    if torch.cuda.is_current_stream_capturing():
        return _Loaded(why_not="nothing can be loaded while a CUDA graph is captured")
    _LOADED[device, dtype] = found = _load(device, dtype)
    return found


def _load(device: int, dtype: torch.dtype) -> _Loaded:
    if reason := why_no_compiler():
        return _Loaded(why_not=reason)
    try:
        with torch.cuda.device(device):
            function = load_function(device, program_for(dtype), "keyed_dropout_kernel")
    except (KernelUnavailable, ImportError, OSError, RuntimeError) as error:
        # A bindings package without its libraries, or a cache that cannot be written: the reference needs neither.
        return _Loaded(why_not=f"the kernel cannot be loaded ({str(error).rstrip('.')})")
    return _Loaded(function=function)


def program_for(dtype: torch.dtype) -> Program:
    """The source compiled for a number format."""
    source = launching.read_source(Path(__file__).with_name("dropout.cu"))
    return Program(name="dropout.cu", source=source, macros=(("DTYPE", DTYPES[dtype]),))


def keyed_dropout_cuda(
    x: Tensor,  # [R, ...]
    seeds: Tensor,  # [N] int32
    start: int,
    p: float,
    *,
    by_channel: bool = False,
) -> Tensor:
    """What ``keyed_dropout_ref`` gives, bit for bit, in the memory format of ``x``; nothing is kept but the seeds."""
    if x.requires_grad and torch.is_grad_enabled():
        out: Tensor = _KeyedDropout.apply(x, seeds, start, p, by_channel)
        return out
    return _run(x, seeds, start, p, by_channel)


class _KeyedDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, seeds: Tensor, start: int, p: float, by_channel: bool) -> Tensor:
        ctx.save_for_backward(seeds)
        ctx.numbers = start, p, by_channel
        return _run(x, seeds, start, p, by_channel)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None, None, None]:
        """The same function of the gradient: it is linear, and so can be differentiated again."""
        (grad,), (seeds,), (start, p, by_channel) = grads, ctx.saved_tensors, ctx.numbers
        if why_not(grad, seeds):  # gradients may come in batches, or of another type than the output
            found = keyed_dropout_ref(grad, seeds, start, p, by_channel=by_channel)
        else:
            found = keyed_dropout_cuda(grad, seeds, start, p, by_channel=by_channel)
        return found, None, None, None, None


@dataclass(frozen=True, kw_only=True)
class Walk:
    """How a tensor's memory, from its first element to its last, goes through the mask."""

    count: int
    """Elements of the tensor."""
    mask_count: int
    """Elements of the mask, those of all samples."""
    digits: tuple[int, ...]
    """Sizes of the second and third digit of a place in memory, then what each of the three adds in the mask."""


@functools.lru_cache(maxsize=1024)
def walk_through(shape: tuple[int, ...], strides: tuple[int, ...], by_channel: bool) -> Walk | None:
    """The walk for a tensor of such a layout; None if its memory has gaps or takes more than three digits."""
    masked = 2 if by_channel else len(shape)  # dimensions that the mask has
    dims, mask_count = [], 1
    for axis in reversed(range(len(shape))):
        dims.append((strides[axis], shape[axis], mask_count if axis < masked else 0))
        mask_count *= shape[axis] if axis < masked else 1
    digits: list[tuple[int, int]] = []
    count = 1
    for stride, size, step in sorted(dim for dim in dims if dim[1] != 1):
        if stride != count:
            return None
        if digits and digits[-1][0] * digits[-1][1] == step:  # goes on where the digit below it ends
            digits[-1] = digits[-1][0] * size, digits[-1][1]
        else:
            digits.append((size, step))
        count *= size
    if len(digits) > MAX_DIGITS:
        return None
    (inner, step2), (middle, step1), (_, step0) = (digits + [(1, 0)] * MAX_DIGITS)[:MAX_DIGITS]
    return Walk(count=count, mask_count=mask_count, digits=(middle, inner, step0, step1, step2))


def _run(x: Tensor, seeds: Tensor, start: int, p: float, by_channel: bool) -> Tensor:
    if x.numel() == 0:
        return torch.empty_like(x)
    x = x.resolve_neg()
    walk = walk_through(x.shape, x.stride(), by_channel)
    if walk is None:
        x = x.contiguous()
        walk = walk_through(x.shape, x.stride(), by_channel)
        assert walk is not None
    y = torch.empty_like(x)
    width = walk.mask_count // len(seeds)
    blocks = -(-walk.count * x.element_size() // (THREADS * PACK_BYTES))
    addresses = x.data_ptr(), y.data_ptr(), seeds.data_ptr()
    numbers = (1 / (1 - p), walk.count, width, start, threshold_of(p), *walk.digits)
    _launch(x.device, x.dtype, blocks, (*addresses, *numbers))
    return y


class _Arguments(threading.local):
    """Where a launch has its arguments; backward passes of several cards launch in threads of their own."""

    def __init__(self) -> None:
        self.packed = ctypes.create_string_buffer(LAYOUT.size)
        self.pointers = (ctypes.c_void_p * 1)(ctypes.addressof(self.packed))
        self.address = ctypes.addressof(self.pointers)


_ARGUMENTS = _Arguments()


def _launch(device: torch.device, dtype: torch.dtype, blocks: int, values: tuple[Any, ...]) -> None:
    """Runs the kernel on torch's stream."""
    mine = _ARGUMENTS
    LAYOUT.pack_into(mine.packed, 0, *values)
    launching.enqueue(_LOADED[device.index, dtype].function, (blocks, 1, 1), THREADS, mine.address, device.index)
