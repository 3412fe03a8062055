"""Splatting on an NVIDIA card: nine kernels in CUDA C++, compiled at run time for the view's channels and degree.

The host never waits for a picture. It waits for one number of a frame, the count of its pairs, if the frame is drawn
without gradients or is one of the first of its size; cuda.md says exactly when, and what happens to a frame that turns
out to have had too little room. While a CUDA graph is captured nothing waits at all: see :func:`overflowed`.

A small frame takes the host longer than the card, and most of the host's time is operations of torch. So memory is
asked for in few pieces, and the kernels are told addresses in them.
"""

from __future__ import annotations

import functools
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hotlap.base.errors import UsageError
from hotlap.kernels.nvrtc import why_no_compiler
from hotlap.kernels.splat import cuda_program as program
from hotlap.kernels.splat import cuda_room as room
from hotlap.kernels.splat.cuda_program import THREADS, Variant, frame_type
from hotlap.kernels.splat.cuda_room import overflowed as overflowed
from hotlap.kernels.splat.frame import TILE, Drawn, Splats, View

MAX_CHANNELS = 40
"""A block keeps the channels of 32 splats for each warp in 48 KiB of shared memory."""
MAX_SPLATS = 2**28
"""A splat's number and four flags share 32 bits."""
SHORT_LISTS = 256
"""Pairs that one warp sorts in its registers; with no more than this in the mean tile, a warp takes a tile each."""
FEW_TILES = 1024
"""Up to so many, warps are too few to fill a card, and a thread blends one pixel: eight warps then share a tile."""
PLANES = ("quats", "means", "scales", "opacities")
"""Gradients whose memory holds the pixels' sums of a splat until they are made from those: 11 numbers a splat."""


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
    return _why_no_card(device)


@functools.cache
def _why_no_card(device: torch.device) -> str:
    """Why the kernels cannot be compiled for a card; asked once, for the answer stays the same."""
    if reason := why_no_compiler():
        return reason
    major, minor = torch.cuda.get_device_capability(device)
    return "" if major >= 8 else f"the kernels need sm_80 or newer, and the card is sm_{major}{minor}"


INPUTS = ("means", "quats", "scales", "opacities", "colors", "viewmats", "Ks", "backgrounds")
ON_SCREEN = ("means2d", "radii", "depths", "conics")
IN_PLACE = nullcontext()


@dataclass
class Saved:
    """What the backward pass needs of a frame."""

    frame: Any
    """As the kernels of the forward pass were given it; addresses of the user's tensors and of results may be old."""
    key: room.Key
    """Which frames need about the same room."""
    told: room.Told | None
    """Who knows whether the pairs fitted; None: they did, or a graph was captured."""
    memory: Tensor | None = None
    """int32: shade, light, lasts, order, ranges and ids of ``frame.cuh``, one behind the other."""


def _give(frame: Any, splats: Splats) -> list[Tensor]:
    """Tells the frame where the user's tensors are; those returned must live until the kernels are launched."""
    given = []
    for name in INPUTS:
        tensor = getattr(splats, name)
        if tensor is not None:
            given.append(_aligned(tensor))
            setattr(frame, name, given[-1].data_ptr())
    return given


def _aligned(tensor: Tensor) -> Tensor:
    """The same numbers without gaps, from an address that 16 bytes can be read at."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def _numbers(splats: Splats, view: View) -> Any:
    """A frame with its sizes and options, and without an address."""
    sh, frame = view.sh_degree is not None, frame_type()()
    frame.num_splats, frame.num_cameras = splats.means.shape[0], splats.viewmats.shape[0]
    # Users' sizes and flags may be NumPy's, which the structure does not take.
    frame.width, frame.height = int(view.width), int(view.height)
    frame.tiles_x, frame.tiles_y = -(-frame.width // TILE), -(-frame.height // TILE)
    frame.coefficients = splats.colors.shape[1] if sh else 0
    frame.colors_by_camera = not sh and splats.colors.dim() == 3
    frame.raw, frame.antialiased = int(view.raw), int(view.antialiased)
    frame.near_depth, frame.far_depth = view.near, min(view.far, 3.4e38)
    frame.eps2d, frame.radius_clip = view.eps2d, view.radius_clip
    return frame


def _num_tiles(frame: Any) -> int:
    return int(frame.num_cameras * frame.tiles_x * frame.tiles_y)


def _variant(splats: Splats, view: View, num_tiles: int, needs: frozenset[str] = frozenset()) -> Variant:
    return _known_variant(
        3 if view.sh_degree is not None else splats.colors.shape[-1],
        view.depth,
        view.sh_degree,
        view.absgrad and "means2d" in needs,
        "viewmats" in needs or "Ks" in needs,
        1 if num_tiles <= FEW_TILES else None,
    )


@functools.cache
def _known_variant(
    channels: int, depth: bool, sh_degree: int | None, absgrad: bool, camera: bool, pixels: int | None
) -> Variant:
    return Variant(
        channels=channels, depth=depth, sh_degree=sh_degree, absgrad=absgrad, camera=camera, pixels=pixels
    )  # fmt: skip


def forward(splats: Splats, view: View) -> Drawn:
    """The frames of all cameras, complete: the host waits until it knows that all pairs fitted."""
    drawn = _begin(splats, view)
    _complete(splats, view, drawn)
    return drawn


def forward_ahead(splats: Splats, view: View) -> Drawn:
    """As ``forward``, but for a backward pass: once the room is settled the host waits for nothing.

    ``backward`` looks whether all pairs fitted, and draws the frame again, into the same tensors, if they did not.
    """
    drawn = _begin(splats, view)
    told = drawn.saved.told
    if told is not None and room.ROOM.is_settled(told.key, told.num_splats):
        told.handed_out = True
    else:
        _complete(splats, view, drawn)
    return drawn


def _begin(splats: Splats, view: View) -> Drawn:
    """One attempt at a frame, with the room that is known."""
    device, num_splats = splats.means.device, splats.means.shape[0]
    key = room.Key(device, splats.viewmats.shape[0], view.height, view.width)
    captured = room.capturing(device)
    if not captured:
        room.Told.read_those_there(device)
    capacity = room.ROOM.of(key, num_splats)
    told = None if captured else room.Told(key, num_splats, capacity)
    frame = _numbers(splats, view)
    variant = _variant(splats, view, _num_tiles(frame))
    drawn = _room_for_frame(key, num_splats, variant, Saved(frame, key, told))
    _draw(splats, variant, drawn, capacity)
    return drawn


def _complete(splats: Splats, view: View, drawn: Drawn) -> None:
    """Waits for the count of pairs; draws again, with more room and into the same tensors, until all have fitted."""
    told = drawn.saved.told
    while told is not None and not told.wait():
        told.warn()
        capacity = room.ROOM.of(told.key, told.num_splats)
        told = drawn.saved.told = room.Told(told.key, told.num_splats, capacity)
        _draw(splats, _variant(splats, view, _num_tiles(drawn.saved.frame)), drawn, capacity)
    drawn.saved.told = None


def _room_for_frame(key: room.Key, num_splats: int, variant: Variant, saved: Saved) -> Drawn:
    """Memory for what users are given of a frame."""
    device, num_cameras, height, width = key
    floats: dict[str, Any] = {"dtype": torch.float32, "device": device}
    whole: dict[str, Any] = {"dtype": torch.int32, "device": device}
    return Drawn(
        colors=torch.empty(num_cameras, height, width, variant.channels + variant.depth, **floats),
        alphas=torch.empty(num_cameras, height, width, 1, **floats),
        means2d=torch.empty(num_cameras, num_splats, 2, **floats),
        radii=torch.empty(num_cameras, num_splats, 2, **whole),
        depths=torch.empty(num_cameras, num_splats, **floats),
        conics=torch.empty(num_cameras, num_splats, 3, **floats),
        tiles_per_splat=torch.empty(num_cameras, num_splats, **whole),
        saved=saved,
    )


def _draw(splats: Splats, variant: Variant, drawn: Drawn, capacity: int) -> None:
    """Fills a frame's tensors. What only this needs is free for others as soon as it is done."""
    device, saved, frame = splats.means.device, drawn.saved, drawn.saved.frame
    num_tiles, told, most = _num_tiles(frame), saved.told, room.ROOM.most(saved.key)
    given, scratch = _give(frame, splats), _room_for_lists(frame, saved, variant, capacity, device)
    for name in (*ON_SCREEN, "alphas", "tiles_per_splat"):
        setattr(frame, name, getattr(drawn, name).data_ptr())
    frame.image, frame.capacity = drawn.colors.data_ptr(), capacity
    frame.needed = room.needed_by_graphs(device).data_ptr()
    frame.told = None if told is None else told.address
    frame.short_lists = short_lists = most is not None and most <= SHORT_LISTS * num_tiles
    blocks = -(-frame.num_splats // THREADS["splat_project_fwd_kernel"]), frame.num_cameras  # of the pairs' kernel too
    first = {
        "splat_clear_kernel": (-(-num_tiles // THREADS["splat_clear_kernel"]), 1),
        "splat_project_fwd_kernel": blocks,
        "splat_scan_kernel": (1, 1),
    }
    lists = -(-num_tiles // (THREADS["splat_sort_kernel"] // 32)) if short_lists else num_tiles
    others = {"splat_pair_kernel": blocks, "splat_sort_kernel": (lists, 1), "splat_blend_fwd_kernel": (num_tiles, 1)}
    with _on(device):
        program.launch(variant, first, frame, device)
        if told is not None:
            told.record()
        program.launch(variant, others, frame, device)
    del given, scratch  # torch gives their memory to nobody who is not behind the kernels in the stream


def _room_for_lists(frame: Any, saved: Saved, variant: Variant, capacity: int, device: torch.device) -> Tensor:
    """Tells the frame where its lists are; those for the backward pass are saved, those for now are returned."""
    rows, pixels = frame.num_cameras * frame.num_splats, frame.num_cameras * frame.width * frame.height
    num_tiles = _num_tiles(frame)
    shade = rows * 4 if variant.sh_degree is not None else rows
    kept = {"shade": shade, "light": pixels, "lasts": pixels, "order": num_tiles, "ranges": num_tiles + 1}
    now = {"keys": 2 * capacity, "keys_spare": 2 * capacity, "reached": rows, "cursors": num_tiles}
    saved.memory = _lay_out(frame, kept | {"ids": capacity}, device)
    return _lay_out(frame, now, device)


def _lay_out(frame: Any, sizes: dict[str, int], device: torch.device) -> Tensor:
    """One piece of memory for several lists of so many numbers of 4 bytes; the frame is told where each begins."""
    places, end = {}, 0
    for name, size in sizes.items():
        places[name] = end
        end += (size + 3) & ~3  # 16 bytes can be read at the beginning of each
    memory = torch.empty(end, dtype=torch.int32, device=device)
    address = memory.data_ptr()
    for name, place in places.items():
        setattr(frame, name, address + 4 * place)
    return memory


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Inside, the card is the current one."""
    if device.type != "cuda" or torch.cuda.current_device() == device.index:
        return IN_PLACE
    return torch.cuda.device(device)


def backward(
    splats: Splats,
    view: View,
    drawn: Drawn,
    v_colors: Tensor | None,  # [C, H, W, D(+1)]
    v_alphas: Tensor | None,  # [C, H, W, 1]
    v_means2d: Tensor | None,  # [C, N, 2]
    needs: frozenset[str],
) -> dict[str, Tensor]:
    """The gradients asked for, by name; ``means2d`` is that of the blending alone, without ``v_means2d``."""
    device = splats.means.device
    check_determinism(device)
    if not room.capturing(device):
        _complete(splats, view, drawn)
    frame = frame_type().from_buffer_copy(drawn.saved.frame)
    num_tiles = _num_tiles(frame)
    variant = _variant(splats, view, num_tiles, needs)
    found, sums = _room_for_gradients(splats, variant, needs)
    if "means2d" in needs:
        found["means2d"] = torch.empty_like(drawn.means2d)
        if view.absgrad:
            found["means2d_abs"] = torch.empty_like(drawn.means2d)
    given, told = _give(frame, splats), {"v_image": v_colors, "v_alphas": v_alphas, "v_means2d": v_means2d}
    for name, tensor in told.items():
        if tensor is not None:
            given.append(_aligned(tensor))
            setattr(frame, name, given[-1].data_ptr())
    for name in ON_SCREEN:
        setattr(frame, name, getattr(drawn, name).data_ptr())
    for name, tensor in found.items():
        setattr(frame, f"out_{name}", tensor.data_ptr())
    frame.sums = None if sums is None else sums.data_ptr()
    to_clear = 4 * frame.num_splats if sums is None else 0
    kernels = {
        "splat_clear_bwd_kernel": (-(-to_clear // THREADS["splat_clear_bwd_kernel"]), 1),
        "splat_blend_bwd_kernel": (num_tiles, 1),
        "splat_project_bwd_kernel": (-(-frame.num_splats // THREADS["splat_project_bwd_kernel"]), 1),
    }
    with _on(device):
        program.launch(variant, kernels, frame, device)
    return found


def check_determinism(device: torch.device) -> None:
    """Says that gradients are sums in no fixed order where torch was told to be deterministic."""
    if device.type != "cuda" or not torch.are_deterministic_algorithms_enabled():
        return
    message = (
        f"gradients of splatting on {device} are sums in no fixed order, and deterministic algorithms are asked for"
    )
    if torch.is_deterministic_algorithms_warn_only_enabled():
        warnings.warn(message, RuntimeWarning, stacklevel=3)
        return
    raise UsageError(
        message, remedy="Take impl='cpu', whose gradients are the same bits in every run, or warn_only=True"
    )


def _room_for_gradients(
    splats: Splats, variant: Variant, needs: frozenset[str]
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Memory for the gradients of the inputs, zeros where kernels add to it, and for the pixels' sums of each splat.

    With one camera the sums have no memory of their own if that of the gradients made from them will do; the first
    kernel clears it.
    """
    floats: dict[str, Any] = {"dtype": torch.float32, "device": splats.means.device}
    num_cameras, num_splats = splats.viewmats.shape[0], splats.means.shape[0]
    found: dict[str, Tensor] = {}
    sums = None
    if num_cameras != 1 or variant.sums > 11 or not needs.issuperset(PLANES):
        sums = torch.zeros(num_cameras, num_splats, variant.sums, **floats)
    for name in INPUTS:
        if name in needs:
            kind = torch.zeros if name in ("viewmats", "Ks", "backgrounds") else torch.empty
            found[name] = kind(getattr(splats, name).shape, **floats)
    return found, sums
