"""What the kernels of splatting are compiled for, the structure that they are given, and how one is run."""

from __future__ import annotations

import ctypes
import functools
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hotlap.kernels.launch import Loaded, enqueue_all, loaded
from hotlap.kernels.nvrtc import Program, load_function
from hotlap.kernels.splat.frame import INPUTS, TILE

SHARED = ("primitives.cuh", "frame.cuh", "project.cuh", "tiles.cuh", "blend.cuh")
SOURCES = {
    "fwd": (*SHARED, "counts.cuh", "project_fwd.cu", "order.cu", "blend_fwd.cu"),
    "bwd": (*SHARED, "sums.cuh", "blend_bwd.cu", "project_bwd.cu"),
}
THREADS = {
    "splat_clear_kernel": 256,
    "splat_project_fwd_kernel": 256,
    "splat_pair_kernel": 256,
    "splat_sort_kernel": 256,
    "splat_merge_kernel": 1024,
    "splat_clear_bwd_kernel": 256,
    "splat_project_bwd_kernel": 128,
}
"""Of a block, as in the sources; those of the blending kernels depend on the variant."""
Kernels = tuple[tuple[str, int, int], ...]
"""The names of kernels that run one after another, each with the blocks of its grid, across and down."""


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
def frame_type() -> Any:
    """The structure that every kernel is given; its fields are read from ``frame.cuh``, and are null or 0 at first."""
    text = Path(__file__).with_name("frame.cuh").read_text(encoding="utf-8")
    found = re.findall(r"^    (?:const )?(float|int|u32|u64)(\*?) (\w+);", text, re.MULTILINE)
    numbers = {"float": ctypes.c_float, "int": ctypes.c_int}
    fields = [(name, ctypes.c_void_p if star else numbers[kind]) for kind, star, name in found]
    return type("Frame", (ctypes.Structure,), {"_fields_": fields})


def _addresses() -> tuple[str, ...]:
    """The names of the structure's addresses, which come before its numbers."""
    return tuple(name for name, kind in frame_type()._fields_ if kind is ctypes.c_void_p)


DRAWN_WITH = _addresses()[: _addresses().index("v_image")]
"""The addresses that the forward pass needs, in the order of the structure; the tensors of the splats are the first."""
LEARNED_WITH = _addresses()[len(DRAWN_WITH) :]
"""Those that only the backward pass needs."""
_DRAWN, _LEARNED = struct.Struct(f"{len(DRAWN_WITH)}P"), struct.Struct(f"{len(LEARNED_WITH)}P")
_INPUTS = struct.Struct(f"{len(INPUTS)}P")


def tell_forward(frame: Any, addresses: Sequence[int]) -> None:
    """Puts the addresses of ``DRAWN_WITH`` into the structure: at once, which takes half as long as one by one."""
    _DRAWN.pack_into(frame, 0, *addresses)


def tell_backward(frame: Any, inputs: Sequence[int], means2d: int, others: Sequence[int]) -> None:
    """Puts in those of the splats' tensors and of the centres, which may be elsewhere now, and of ``LEARNED_WITH``."""
    _INPUTS.pack_into(frame, 0, *inputs)
    frame.means2d = means2d
    _LEARNED.pack_into(frame, _DRAWN.size, *others)


@functools.lru_cache(maxsize=256)
def _loaded(device: int, variant: Variant, kernels: Kernels) -> tuple[Loaded, ...]:
    """The kernels, ready on a card, with their grids and the threads of their blocks."""
    if torch.cuda.current_device() != device:  # they are loaded for the card that is the current one
        with torch.cuda.device(device):
            return _loaded(device, variant, kernels)
    return tuple(
        loaded(load_function(device, variant.program(way_of(name)), name), (across, down, 1), variant.threads(name))
        for name, across, down in kernels
        if across and down
    )


def launch(variant: Variant, kernels: Kernels, frame: Any, device: torch.device) -> None:
    """Runs kernels one after another on torch's stream; a grid without blocks is no launch."""
    place = ctypes.c_void_p(ctypes.addressof(frame))
    enqueue_all(_loaded(device.index, variant, kernels), ctypes.addressof(place), device.index)
