"""One kernel of CUDA C++ run on torch's stream: tensors are given as addresses, numbers and structures by value."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hotlap.kernels.nvrtc import Program, done, ensure_context, load_function

Argument = Tensor | int | float | bytes | None
Loaded = tuple[Any, int, int, int, int, int, int, int]
"""A kernel of the driver, its grid, the threads of a block, and the bytes of dynamic shared memory: all as the driver
is given them, so that each launch costs the host less."""
PRIMITIVES = Path(__file__).with_name("primitives.cuh")


@functools.cache
def read_source(*files: Path) -> str:
    """The CUDA C++ of a kernel behind the primitives that it is written with."""
    return "\n".join(file.read_text(encoding="utf-8") for file in (PRIMITIVES, *files))


class Packed:
    """Arguments where the driver looks for them; alive as long as this object."""

    def __init__(self, arguments: Sequence[Argument]) -> None:
        self._values = [_as_c(argument) for argument in arguments]
        self._pointers = (ctypes.c_void_p * len(self._values))(*map(ctypes.addressof, self._values))
        self.address = ctypes.addressof(self._pointers)
        """Of an array of pointers to the arguments."""


def _as_c(argument: Argument) -> ctypes.c_void_p | ctypes.c_int | ctypes.c_float | ctypes.Array:
    if argument is None:
        return ctypes.c_void_p(0)
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    if isinstance(argument, bytes):
        return (ctypes.c_char * len(argument)).from_buffer_copy(argument)
    return ctypes.c_int(argument) if isinstance(argument, int) else ctypes.c_float(argument)


def launch(
    program: Program, name: str, grid: tuple[int, int, int], threads: int,
    arguments: Sequence[Argument], device: torch.device, *, shared_bytes: int = 0,
) -> None:  # fmt: skip
    """Runs the kernel ``name`` on the current stream of ``device``; a grid without blocks is no launch."""
    if not all(grid):
        return None
    current = torch.cuda.current_device()
    if device.index not in (None, current):
        with torch.cuda.device(device.index):
            return launch(program, name, grid, threads, arguments, device, shared_bytes=shared_bytes)
    function = load_function(current, program, name, shared_bytes)
    packed = Packed(arguments)
    return enqueue(function, grid, threads, packed.address, current, shared_bytes=shared_bytes)


def enqueue(
    function: Any, grid: tuple[int, int, int], threads: int, address: int, index: int, *, shared_bytes: int = 0
) -> None:
    """Puts a loaded kernel on the current stream of the card ``index``; ``address`` is that of its packed arguments."""
    enqueue_all([loaded(function, grid, threads, shared_bytes)], address, index)


def loaded(function: Any, grid: tuple[int, int, int], threads: int, shared_bytes: int = 0) -> Loaded:
    """What :func:`enqueue_all` is given of a kernel."""
    return function, *grid, threads, 1, 1, shared_bytes


def enqueue_all(kernels: Sequence[Loaded], address: int, index: int) -> None:
    """Puts loaded kernels that are given the same arguments on the current stream of the card, one after another."""
    if torch.cuda.current_device() != index:
        with torch.cuda.device(index):
            return enqueue_all(kernels, address, index)
    # As Triton asks for it: a Stream object takes longer to make than the launch itself.
    stream, run = _driver_stream(torch._C._cuda_getCurrentRawStream(index)), _driver_launch()
    for kernel in kernels:
        if run(*kernel, stream, address, 0)[0] != 0:  # threads that run backward passes may not have a context yet
            ensure_context(index)
            done(run(*kernel, stream, address, 0))
    return None


@functools.cache
def _driver_launch() -> Any:
    from cuda.bindings import driver

    return driver.cuLaunchKernel


@functools.lru_cache(maxsize=64)
def _driver_stream(handle: int) -> Any:
    """The stream as the driver takes it; given a number, the bindings would make such an object at every launch."""
    from cuda.bindings import driver

    return driver.CUstream(handle)
