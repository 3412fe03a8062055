"""What the kernels of splatting are compiled for, the structure that they are given, and how one is run."""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hotlap.kernels.launch import Packed
from hotlap.kernels.nvrtc import Program, done, load_function
from hotlap.kernels.splat.frame import TILE

SHARED = ("primitives.cuh", "frame.cuh", "project.cuh", "tiles.cuh", "blend.cuh")
SOURCES = {
    "fwd": (*SHARED, "project_fwd.cu", "order.cu", "blend_fwd.cu"),
    "bwd": (*SHARED, "sums.cuh", "blend_bwd.cu", "project_bwd.cu"),
}
THREADS = {
    "splat_project_fwd_kernel": 256,
    "splat_scan_kernel": 1024,
    "splat_pair_kernel": 256,
    "splat_sort_kernel": 256,
    "splat_project_bwd_kernel": 128,
}
"""Of a block, as in the sources; those of the blending kernels depend on the variant."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What the sources are compiled for."""

    channels: int
    """Of a colour, without the depth."""
    depth: bool
    """The depth is one more."""
    sh_degree: int | None
    """Of the coefficients; None: colours as they are."""
    absgrad: bool = False
    """Absolute gradients too."""
    camera: bool = False
    """Gradients of poses and intrinsics."""
    pixels: int | None = None
    """Of a thread, in one column: 1, 2 or 4; None: those that were fastest."""

    def pixels_each(self, way: str) -> int:
        """Of a thread: as many as the registers hold, but two at most forward, where more warps gain more."""
        if self.pixels is not None:
            return self.pixels
        channels = self.channels + self.depth
        return 1 if channels > 8 else 4 if channels <= 4 and way == "bwd" else 2

    @property
    def sums(self) -> int:
        """Numbers that the pixels tell each splat."""
        return 6 + self.channels + self.depth + 2 * self.absgrad

    def threads(self, kernel: str) -> int:
        """Of a block of the kernel; those of the blending kernels are tiles."""
        return THREADS.get(kernel) or TILE * TILE // self.pixels_each(way_of(kernel))

    def program(self, way: str) -> Program:
        """The kernels of one way, ``fwd`` or ``bwd``."""
        macros = {
            "CHANNELS": self.channels,
            "DEPTH": int(self.depth),
            "SH": -1 if self.sh_degree is None else self.sh_degree,
            "ABSGRAD": int(self.absgrad),
            "CAMERA": int(self.camera),
            "PIXELS": self.pixels_each(way),
        }
        return Program(name=f"splat_{way}.cu", source=read_source(way), macros=tuple(macros.items()))


def way_of(kernel: str) -> str:
    """The program that the kernel is part of."""
    return "bwd" if "bwd" in kernel else "fwd"


@functools.cache
def read_source(way: str) -> str:
    """The CUDA C++ that is compiled for one way."""
    return "\n".join(Path(__file__).with_name(name).read_text(encoding="utf-8") for name in SOURCES[way])


@functools.cache
def frame_layout() -> tuple[struct.Struct, dict[str, int]]:
    """What every kernel is given, and the place of each field in it by name, in the order of ``frame.cuh``."""
    text = Path(__file__).with_name("frame.cuh").read_text(encoding="utf-8")
    found = re.findall(r"^    (?:const )?(float|int|u32|u64)(\*?) (\w+);", text, re.MULTILINE)
    kinds = "".join("P" if star else kind[0] for kind, star, _ in found)
    # As in C, it is as long as a multiple of its widest member.
    return struct.Struct(kinds + "0P"), {name: place for place, (_, _, name) in enumerate(found)}


def pack_frame(values: dict[str, Any]) -> bytes:
    """The frame as the kernels take it; what is not named is null or 0."""
    layout, places = frame_layout()
    numbers = [0] * len(places)
    for name, value in values.items():
        numbers[places[name]] = value.data_ptr() if isinstance(value, Tensor) else value or 0
    return layout.pack(*numbers)


@functools.cache
def _function(device: int, variant: Variant, name: str) -> Any:
    return load_function(device, variant.program(way_of(name)), name)


def launch(
    variant: Variant, kernels: Sequence[tuple[str, tuple[int, int]]], frame: bytes, device: torch.device
) -> None:
    """Runs kernels, by name and grid, one after another on torch's stream; a grid without blocks is no launch.

    The card and its context must be current.
    """
    from cuda.bindings import driver

    packed, stream = Packed([frame]), torch.cuda.current_stream(device).cuda_stream
    for name, grid in kernels:
        if all(grid):
            function, threads = _function(device.index, variant, name), variant.threads(name)
            done(driver.cuLaunchKernel(function, *grid, 1, threads, 1, 1, 0, stream, packed.address, 0))
