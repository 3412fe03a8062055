"""Splatting on an NVIDIA card: seven kernels in CUDA C++, compiled at run time for the view's channels and degree.

Nothing on the host waits for a result inside a frame but one number, the count of pairs, which is known long before the
picture is; cuda.md says how it is used. While a CUDA graph is captured nothing waits at all: see :func:`overflowed`.
"""

from __future__ import annotations

import ctypes
import functools
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from hotlap.base.errors import UsageError
from hotlap.kernels.nvrtc import Program, done, ensure_context, load_function, why_no_compiler
from hotlap.kernels.splat.frame import TILE, Drawn, Splats, View

SHARED = ("primitives.cuh", "frame.cuh", "project.cuh", "tiles.cuh", "blend.cuh")
SOURCES = {
    "fwd": (*SHARED, "project_fwd.cu", "order.cu", "blend_fwd.cu"),
    "bwd": (*SHARED, "blend_bwd.cu", "project_bwd.cu"),
}
THREADS = {
    "splat_project_fwd_kernel": 256,
    "splat_scan_kernel": 1024,
    "splat_pair_kernel": 256,
    "splat_sort_kernel": 256,
    "splat_project_bwd_kernel": 128,
}
"""Of a block, as in the sources; blocks of the blending kernels are tiles and have as many as the variant says."""
MAX_CHANNELS = 40
"""A block keeps the channels of 32 splats for each warp in 48 KiB of shared memory."""
MAX_SPLATS = 2**28
"""A splat's number and four flags share 32 bits."""
STEP = 2**16
"""Room for pairs is a multiple of this, so that memory of one size serves many frames."""


def why_not(splats: Splats, view: View) -> str:
    """Why this implementation cannot draw such splats; '' if it can."""
    device, dtype, num_splats = splats.means.device, splats.means.dtype, len(splats.means)
    channels = (3 if view.sh_degree is not None else splats.colors.shape[-1]) + view.depth
    if device.type != "cuda":
        return f"the tensors are on {device.type}"
    if dtype != torch.float32:
        return f"{str(dtype).removeprefix('torch.')} is not float32"
    if channels > MAX_CHANNELS:
        return f"{channels} channels are above {MAX_CHANNELS}"
    if num_splats >= MAX_SPLATS:
        return f"{num_splats} splats are not below {MAX_SPLATS}"
    if reason := why_no_compiler():
        return reason
    major, minor = torch.cuda.get_device_capability(device)
    return "" if major >= 8 else f"the kernels need sm_80 or newer, and the card is sm_{major}{minor}"


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
    """Of a thread, in one column: 1, 2 or 4; None: as many as the registers hold."""

    @property
    def pixels_each(self) -> int:
        if self.pixels is not None:
            return self.pixels
        channels = self.channels + self.depth
        return 4 if channels <= 4 else 2 if channels <= 8 else 1

    @property
    def sums(self) -> int:
        """Numbers that the pixels tell each splat."""
        return 6 + self.channels + self.depth + 2 * self.absgrad

    @property
    def blend_threads(self) -> int:
        return TILE * TILE // self.pixels_each

    def program(self, way: str) -> Program:
        """The kernels of one way, ``fwd`` or ``bwd``."""
        macros = {
            "CHANNELS": self.channels,
            "DEPTH": int(self.depth),
            "SH": -1 if self.sh_degree is None else self.sh_degree,
            "ABSGRAD": int(self.absgrad),
            "CAMERA": int(self.camera),
            "PIXELS": self.pixels_each,
        }
        return Program(name=f"splat_{way}.cu", source=read_source(way), macros=tuple(macros.items()))


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
    return load_function(device, variant.program("bwd" if "bwd" in name else "fwd"), name)


def _launch(variant: Variant, name: str, grid: tuple[int, int], frame: bytes, device: torch.device) -> None:
    """Runs one kernel on torch's stream."""
    from cuda.bindings import driver

    function = _function(device.index, variant, name)
    packed = ctypes.create_string_buffer(frame, len(frame))
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(packed))
    stream = torch.cuda.current_stream(device).cuda_stream
    threads = THREADS.get(name, variant.blend_threads)
    done(driver.cuLaunchKernel(function, *grid, 1, threads, 1, 1, 0, stream, ctypes.addressof(arguments), 0))


class _Room:
    """For how many pairs of tile and splat the next frame has memory, by device and size of the picture."""

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], int] = {}
        self.least: dict[torch.device, int] = {}

    def of(self, key: tuple[Any, ...], guess: int) -> int:
        device = key[0]
        known = self.known.get(key)
        if known is None and _capturing(device):
            raise UsageError(
                f"no frame of (cameras, height, width) = {key[1:]} was drawn on {device} before this capture",
                remedy="Draw one first: the graph keeps the room for pairs that it was captured with",
            )
        return max(known or guess, self.least.get(device, 0))

    def learn(self, key: tuple[Any, ...], needed: int) -> None:
        """Half as much again as the frame has needed, unless there is room to spare already."""
        if key not in self.known or needed * 1.1 > self.known[key]:
            self.known[key] = -(-(needed * 3 // 2 + 1) // STEP) * STEP


_ROOM = _Room()


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


@functools.cache
def _needed(device: torch.device) -> Tensor:
    """[2] pairs of the latest frame; the most of a frame that did not fit. One for all graphs, so it outlives them."""
    return torch.zeros(2, dtype=torch.int32, device=device)


class _Told:
    """The count of pairs, which the host learns while the card goes on with the frame."""

    free: ClassVar[dict[torch.device, list[_Told]]] = {}

    def __init__(self, device: torch.device) -> None:
        card = device.type == "cuda"
        self.device = device
        self.value = torch.zeros(1, dtype=torch.int32, pin_memory=card)
        self.event = torch.cuda.Event() if card else None

    @classmethod
    def take(cls, device: torch.device) -> _Told:
        """One that no other frame uses; pinned memory and events are slow to make."""
        free = cls.free.setdefault(device, [])
        return free.pop() if free else cls(device)

    def record(self) -> None:
        if self.event is not None:
            self.event.record()

    def wait(self) -> int:
        if self.event is not None:
            self.event.synchronize()
        count = int(self.value[0])
        self.free[self.device].append(self)
        return count


def overflowed(device: torch.device) -> bool:
    """Whether a frame of a replayed CUDA graph had more pairs than room, so that splats are missing in it.

    The host waits for the card. Asking forgets it, and frames drawn or captured from then on have room enough.
    """
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    needed = int(_needed(device)[1])
    if needed:
        _needed(device)[1] = 0
        _ROOM.least[device] = max(_ROOM.least.get(device, 0), -(-(needed * 3 // 2) // STEP) * STEP)
    return needed > 0


def _aligned(tensor: Tensor | None) -> Tensor | None:
    """The same numbers without gaps, from an address that 16 bytes can be read at."""
    if tensor is None:
        return None
    tensor = tensor.detach().contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def _inputs(splats: Splats, view: View) -> dict[str, Any]:
    """The fields of the frame that come from the user."""
    names = ("means", "quats", "scales", "opacities", "colors", "viewmats", "Ks", "backgrounds")
    tiles_x, tiles_y = -(-view.width // TILE), -(-view.height // TILE)
    sh = view.sh_degree is not None
    return {name: _aligned(getattr(splats, name)) for name in names} | {
        "num_splats": len(splats.means),
        "num_cameras": len(splats.viewmats),
        "width": view.width,
        "height": view.height,
        "tiles_x": tiles_x,
        "tiles_y": tiles_y,
        "coefficients": splats.colors.shape[1] if sh else 0,
        "colors_by_camera": not sh and splats.colors.dim() == 3,
        "raw": view.raw,
        "antialiased": view.antialiased,
        "near_depth": view.near,
        "far_depth": min(view.far, 3.4e38),
        "eps2d": view.eps2d,
        "radius_clip": view.radius_clip,
    }


def _variant(splats: Splats, view: View, needs: frozenset[str] = frozenset()) -> Variant:
    return Variant(
        channels=3 if view.sh_degree is not None else splats.colors.shape[-1],
        depth=view.depth,
        sh_degree=view.sh_degree,
        absgrad=view.absgrad and "means2d" in needs,
        camera=bool(needs & {"viewmats", "Ks"}),
    )


def forward(splats: Splats, view: View) -> Drawn:
    """The frames of all cameras. Drawn again, with more room, should the pairs not have fitted."""
    device = splats.means.device
    key = (device, len(splats.viewmats), view.height, view.width)
    given, variant = _inputs(splats, view), _variant(splats, view)
    while True:
        capacity = _ROOM.of(key, guess=-(-max(4 * key[1] * len(splats.means), 1) // STEP) * STEP)
        drawn, told = _draw(given, view, variant, capacity, device)
        if told is None:
            return drawn
        needed = told.wait()
        _ROOM.learn(key, needed)
        if needed <= capacity:
            return drawn


def _draw(
    given: dict[str, Any], view: View, variant: Variant, capacity: int, device: torch.device
) -> tuple[Drawn, _Told | None]:
    """One attempt at a frame, and who will know how many pairs it had."""
    num_cameras, num_splats, num_tiles = given["num_cameras"], given["num_splats"], given["tiles_x"] * given["tiles_y"]
    shape, channels = (num_cameras, view.height, view.width), variant.channels + variant.depth
    floats = functools.partial(torch.empty, dtype=torch.float32, device=device)
    whole = functools.partial(torch.empty, dtype=torch.int32, device=device)
    on_screen = {
        "means2d": floats(num_cameras, num_splats, 2), "radii": whole(num_cameras, num_splats, 2),
        "depths": floats(num_cameras, num_splats), "conics": floats(num_cameras, num_splats, 3),
        "tiles_per_splat": whole(num_cameras, num_splats),
    }  # fmt: skip
    image = {"image": floats(*shape, channels), "alphas": floats(*shape, 1)}
    saved = {
        "shade": floats(num_cameras, num_splats, 4 if variant.sh_degree is not None else 1),
        "ids": whole(capacity), "ranges": whole(num_cameras * num_tiles + 1),
        "order": whole(num_cameras * num_tiles),
        "light": floats(shape), "lasts": whole(shape),
    }  # fmt: skip
    told = None if _capturing(device) else _Told.take(device)
    scratch = {
        "cursors": torch.zeros(num_cameras * num_tiles, dtype=torch.int32, device=device),
        "keys": torch.empty(capacity, dtype=torch.int64, device=device),
        "keys_spare": torch.empty(capacity, dtype=torch.int64, device=device),
        "needed": _needed(device), "told": told.value if told else None, "capacity": capacity,
    }  # fmt: skip
    frame = pack_frame(given | on_screen | image | saved | scratch)
    _draw_kernels(variant, frame, num_splats, num_cameras, num_tiles, told, device)
    drawn = Drawn(colors=image["image"], alphas=image["alphas"], **on_screen, saved=tuple(saved.values()))
    return drawn, told


def _draw_kernels(
    variant: Variant,
    frame: bytes,
    num_splats: int,
    num_cameras: int,
    num_tiles: int,
    told: _Told | None,
    device: torch.device,
) -> None:
    def run(name: str, *grid: int) -> None:
        if all(grid):
            _launch(variant, name, (grid[0], grid[1]), frame, device)

    with _on(device):
        run("splat_project_fwd_kernel", -(-num_splats // THREADS["splat_project_fwd_kernel"]), num_cameras)
        run("splat_scan_kernel", 1, 1)
        if told is not None:
            told.record()
        run("splat_pair_kernel", -(-num_splats // THREADS["splat_pair_kernel"]), num_cameras)
        run("splat_sort_kernel", num_cameras * num_tiles, 1)
        run("splat_blend_fwd_kernel", num_cameras * num_tiles, 1)


@contextmanager
def _on(device: torch.device) -> Iterator[None]:
    """Inside, the card and its context are current."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        ensure_context(device.index)
        yield


def backward(
    splats: Splats,
    view: View,
    drawn: Drawn,
    v_colors: Tensor,  # [C, H, W, D(+1)]
    v_alphas: Tensor,  # [C, H, W, 1]
    v_means2d: Tensor | None,  # [C, N, 2]
    needs: frozenset[str],
) -> dict[str, Tensor]:
    """The gradients asked for, by name; ``means2d`` is that of the blending alone, without ``v_means2d``."""
    device, variant = splats.means.device, _variant(splats, view, needs)
    given = _inputs(splats, view)
    num_cameras, num_splats = given["num_cameras"], given["num_splats"]
    found = {name: _room_for(name, splats, drawn) for name in sorted(needs) if name != "means2d"}
    if "means2d" in needs:
        names = ["means2d", *(["means2d_abs"] if view.absgrad else [])]
        found |= {name: torch.empty_like(drawn.means2d) for name in names}
    saved = dict(zip(("shade", "ids", "ranges", "order", "light", "lasts"), drawn.saved, strict=True))
    gradients = {
        "v_image": v_colors.contiguous(), "v_alphas": v_alphas.contiguous(), "v_means2d": _aligned(v_means2d),
        "sums": torch.zeros(num_cameras, num_splats, variant.sums, dtype=torch.float32, device=device),
    }  # fmt: skip
    on_screen = {name: getattr(drawn, name) for name in ("means2d", "radii", "depths", "conics")}
    outputs = {f"out_{name}": tensor for name, tensor in found.items()}
    frame = pack_frame(given | on_screen | saved | gradients | outputs)
    with _on(device):
        if num_cameras:
            _launch(variant, "splat_blend_bwd_kernel", (len(saved["ranges"]) - 1, 1), frame, device)
        if num_splats:
            blocks = -(-num_splats // THREADS["splat_project_bwd_kernel"])
            _launch(variant, "splat_project_bwd_kernel", (blocks, 1), frame, device)
    return found


def _room_for(name: str, splats: Splats, drawn: Drawn) -> Tensor:
    """Memory for one gradient; zeros where kernels add to it."""
    like = getattr(splats, name)
    kind = torch.zeros if name in ("viewmats", "Ks", "backgrounds") else torch.empty
    return kind(like.shape, dtype=torch.float32, device=drawn.means2d.device)
