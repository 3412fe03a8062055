"""Kernels of CUDA C++ run on the CPU: the same calls as on a card, with every thread of a block a fibre of its own."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hotlap.kernels import launch as launching
from hotlap.kernels.nvrtc import compile_cubin

HERE = Path(__file__).parent


class Host:
    """Takes the place of ``launch``; programs are compiled by g++ when they are first run."""

    def __init__(self, folder: Path, without: str = "") -> None:
        self.folder, self.without, self.libraries = folder, without, {}
        self.compiler = shutil.which("g++")
        if self.compiler is None:
            pytest.skip("no g++")

    def library(self, program) -> ctypes.CDLL:
        if program not in self.libraries:
            stem = f"program{len(self.libraries)}"
            source = program.source.removeprefix(launching.PRIMITIVES.read_text())
            assert source != program.source and self.without in source
            source = source.replace(self.without, "") if self.without else source
            entries = "\n".join(f"ENTRY({name})" for name in kernel_names(source))
            machine = [(HERE / name).read_text() for name in ("fibres.hpp", "block_host.hpp")]
            text = "\n".join([*machine, source, entries])
            (self.folder / f"{stem}.cpp").write_text(text)
            defines = [f"-D{name}={value}" for name, value in program.macros]
            command = [self.compiler, "-O1", "-std=c++17", "-shared", "-fPIC", "-w", *defines, f"{stem}.cpp"]
            done = subprocess.run(
                [*command, "-o", f"{stem}.so"], cwd=self.folder, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            self.libraries[program] = ctypes.CDLL(str(self.folder / f"{stem}.so"))
        return self.libraries[program]

    def __call__(self, program, name, grid, threads, arguments, device) -> None:
        if all(grid):
            packed = launching.Packed(arguments)
            getattr(self.library(program), f"host_{name}")(ctypes.c_void_p(packed.address), *grid, threads)


def kernel_names(source: str) -> list[str]:
    return re.findall(r"^KERNEL\([^)]*\)\s+(\w+)", source, re.MULTILINE)


def check_compiles(program, architecture) -> None:
    """Compiles a program for a card, if there is a compiler here, and finds all its kernels in the code."""
    pytest.importorskip("cuda.bindings")
    try:
        cubin = compile_cubin(program, architecture)
    except RuntimeError as error:  # the bindings are there and the compiler is not
        pytest.skip(f"no NVRTC: {error}")
    names = kernel_names(program.source)
    assert cubin.startswith(b"\x7fELF") and names and all(name.encode() in cubin for name in names)
