"""CUDA C++ compiled at run time: machine code from the user's cache, and its kernels launched on torch's stream.

NVRTC and the driver are reached through ``cuda.bindings``; there is no build step, no nvcc and no host compiler.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hotlap.base.errors import KernelUnavailable
from hotlap.base.homes import cache_home


@dataclass(frozen=True, kw_only=True)
class Program:
    """A source and what it is compiled for."""

    name: str
    """Of its file, for messages and the cache."""
    source: str
    """CUDA C++ that includes nothing."""
    macros: tuple[tuple[str, int], ...] = ()
    """Defined before the source is read."""

    def options(self, architecture: str) -> list[str]:
        """The compiler's options for ``architecture``, as in sm_90."""
        defines = [f"--define-macro={name}={value}" for name, value in self.macros]
        return [f"--gpu-architecture={architecture}", "--std=c++17", *defines]


def why_no_compiler() -> str:
    """Why nothing can be compiled and launched here; '' if it can."""
    import torch

    if not has_bindings():
        return "cuda-bindings is not installed"
    return "" if torch.cuda.is_available() else "no CUDA device"


@functools.cache
def has_bindings() -> bool:
    """Whether NVRTC and the driver can be reached from Python; looked for once, for kernels ask at every call."""
    return find_spec("cuda") is not None and find_spec("cuda.bindings") is not None


def compile_cubin(program: Program, architecture: str) -> bytes:
    """Machine code for ``architecture``, from the user's cache if it was compiled before."""
    from cuda.bindings import nvrtc

    options = program.options(architecture)
    key = "\n".join([program.source, *options, str(nvrtc.nvrtcVersion()[1:])])
    name = f"{Path(program.name).stem}-{hashlib.sha256(key.encode()).hexdigest()[:32]}.cubin"
    cached = cache_home() / "hotlap" / "kernels" / name
    if cached.is_file():
        return cached.read_bytes()
    cubin, _ = run_nvrtc(program, options)
    cached.parent.mkdir(parents=True, exist_ok=True)
    whole = cached.with_name(f"{cached.name}.{os.getpid()}")
    whole.write_bytes(cubin)
    whole.replace(cached)  # another process never sees half a file
    return cubin


def run_nvrtc(program: Program, options: Sequence[str]) -> tuple[bytes, str]:
    """Machine code and what the compiler said about it."""
    from cuda.bindings import nvrtc

    made = done(nvrtc.nvrtcCreateProgram(program.source.encode(), program.name.encode(), 0, [], []))
    (status,) = nvrtc.nvrtcCompileProgram(made, len(options), [option.encode() for option in options])
    log = bytearray(done(nvrtc.nvrtcGetProgramLogSize(made)))
    done(nvrtc.nvrtcGetProgramLog(made, log))
    text = log.decode(errors="replace").strip("\0 \n")
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise KernelUnavailable(f"{program.name} does not compile ({' '.join(options)}): {text}")
    cubin = bytearray(done(nvrtc.nvrtcGetCUBINSize(made)))
    done(nvrtc.nvrtcGetCUBIN(made, cubin))
    done(nvrtc.nvrtcDestroyProgram(made))
    return bytes(cubin), text


def done(answer: tuple[Any, ...]) -> Any:
    """What a call of the CUDA bindings returned besides its status, which must be success."""
    status, *values = answer
    if int(status) != 0:
        raise KernelUnavailable(f"a CUDA call of a kernel failed: {status!r}")
    return values[0] if values else None


@functools.cache
def load_function(device: int, program: Program, name: str, shared_bytes: int = 0) -> Any:
    """The kernel ``name``, ready on a card, with leave to use so much dynamic shared memory."""
    from cuda.bindings import driver

    ensure_context(device)
    function = done(driver.cuModuleGetFunction(_module(device, program), name.encode()))
    if shared_bytes:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        done(driver.cuFuncSetAttribute(function, attribute, shared_bytes))
    return function


@functools.cache
def _module(device: int, program: Program) -> Any:
    import torch
    from cuda.bindings import driver

    major, minor = torch.cuda.get_device_capability(device)
    return done(driver.cuModuleLoadData(compile_cubin(program, f"sm_{major}{minor}")))


def ensure_context(device: int) -> None:
    """Makes the card's context current: the threads that run backward passes may not have one yet."""
    from cuda.bindings import driver

    if int(done(driver.cuCtxGetCurrent())) == 0:
        card = done(driver.cuDeviceGet(device))
        done(driver.cuCtxSetCurrent(done(driver.cuDevicePrimaryCtxRetain(card))))
