"""Splatting on an NVIDIA card: seven kernels in CUDA C++, compiled at run time for the view's channels and degree.

The host never waits for a picture. It waits for one number of a frame, the count of its pairs, if the frame is drawn
without gradients or is one of the first of its size; cuda.md says exactly when, and what happens to a frame that turns
out to have had too little room. While a CUDA graph is captured nothing waits at all: see :func:`overflowed`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hotlap.base.errors import UsageError
from hotlap.kernels.nvrtc import ensure_context, why_no_compiler
from hotlap.kernels.splat import cuda_program as program
from hotlap.kernels.splat import cuda_room as room
from hotlap.kernels.splat.cuda_program import THREADS, Variant, pack_frame
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
    if reason := why_no_compiler():
        return reason
    major, minor = torch.cuda.get_device_capability(device)
    return "" if major >= 8 else f"the kernels need sm_80 or newer, and the card is sm_{major}{minor}"


@dataclass
class Saved:
    """What the backward pass needs of a frame; tensors as in ``frame.cuh``."""

    tensors: dict[str, Tensor]
    """shade, ids, ranges, order, light, lasts."""
    key: room.Key
    """Which frames need about the same room."""
    told: room.Told | None
    """Who knows whether the pairs fitted; None: they did, or a graph was captured."""


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
        "num_splats": splats.means.shape[0],
        "num_cameras": splats.viewmats.shape[0],
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
    tiles = splats.viewmats.shape[0] * -(-view.width // TILE) * -(-view.height // TILE)
    return Variant(
        pixels=1 if tiles <= FEW_TILES else None,
        channels=3 if view.sh_degree is not None else splats.colors.shape[-1],
        depth=view.depth,
        sh_degree=view.sh_degree,
        absgrad=view.absgrad and "means2d" in needs,
        camera=bool(needs & {"viewmats", "Ks"}),
    )


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
    given, variant = _inputs(splats, view), _variant(splats, view)
    drawn = _room_for_frame(given, view, variant)
    drawn.saved.told = told
    _draw(given, variant, drawn, capacity)
    return drawn


def _complete(splats: Splats, view: View, drawn: Drawn) -> None:
    """Waits for the count of pairs; draws again, with more room and into the same tensors, until all have fitted."""
    told = drawn.saved.told
    while told is not None and not told.wait():
        told.warn()
        capacity = room.ROOM.of(told.key, told.num_splats)
        told = drawn.saved.told = room.Told(told.key, told.num_splats, capacity)
        _draw(_inputs(splats, view), _variant(splats, view), drawn, capacity)
    drawn.saved.told = None


def _room_for_frame(given: dict[str, Any], view: View, variant: Variant) -> Drawn:
    """Memory for a frame and what its backward pass needs, but for the list of pairs."""
    num_cameras, num_splats, num_tiles = given["num_cameras"], given["num_splats"], given["tiles_x"] * given["tiles_y"]
    shape, channels = (num_cameras, view.height, view.width), variant.channels + variant.depth
    floats = functools.partial(torch.empty, dtype=torch.float32, device=given["means"].device)
    whole = functools.partial(torch.empty, dtype=torch.int32, device=given["means"].device)
    saved = {
        "shade": floats(num_cameras, num_splats, 4 if variant.sh_degree is not None else 1),
        "ranges": whole(num_cameras * num_tiles + 1), "order": whole(num_cameras * num_tiles),
        "light": floats(shape), "lasts": whole(shape),
    }  # fmt: skip
    return Drawn(
        colors=floats(*shape, channels), alphas=floats(*shape, 1),
        means2d=floats(num_cameras, num_splats, 2), radii=whole(num_cameras, num_splats, 2),
        depths=floats(num_cameras, num_splats), conics=floats(num_cameras, num_splats, 3),
        tiles_per_splat=whole(num_cameras, num_splats),
        saved=Saved(saved, room.Key(given["means"].device, *shape), None),
    )  # fmt: skip


def _draw(given: dict[str, Any], variant: Variant, drawn: Drawn, capacity: int) -> None:
    """Fills a frame's tensors. What only this needs is free for others as soon as it is done."""
    device, told = given["means"].device, drawn.saved.told
    num_tiles = given["num_cameras"] * given["tiles_x"] * given["tiles_y"]
    drawn.saved.tensors["ids"] = torch.empty(capacity, dtype=torch.int32, device=device)
    scratch = {
        "reached": torch.empty_like(drawn.tiles_per_splat),
        "cursors": torch.zeros(num_tiles, dtype=torch.int32, device=device),
        "keys": torch.empty(capacity, dtype=torch.int64, device=device),
        "keys_spare": torch.empty(capacity, dtype=torch.int64, device=device),
        "needed": room.needed_by_graphs(device), "told": told.memory if told else None, "capacity": capacity,
    }  # fmt: skip
    names = ("means2d", "radii", "depths", "conics", "tiles_per_splat", "alphas")
    results = {name: getattr(drawn, name) for name in names} | {"image": drawn.colors}
    most = room.ROOM.most(drawn.saved.key)
    short_lists = most is not None and most <= SHORT_LISTS * num_tiles
    frame = pack_frame(given | results | drawn.saved.tensors | scratch | {"short_lists": short_lists})
    threads = THREADS["splat_project_fwd_kernel"]  # of the pairs' kernel too
    splats = (-(-given["num_splats"] // threads), given["num_cameras"])
    lists = -(-num_tiles // (THREADS["splat_sort_kernel"] // 32)) if short_lists else num_tiles
    first = [("splat_project_fwd_kernel", splats), ("splat_scan_kernel", (1, 1))]
    others = [("splat_pair_kernel", splats), ("splat_sort_kernel", (lists, 1))]
    with _on(device):
        program.launch(variant, first, frame, device)
        if told is not None:
            told.record()
        program.launch(variant, [*others, ("splat_blend_fwd_kernel", (num_tiles, 1))], frame, device)


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
    v_colors: Tensor | None,  # [C, H, W, D(+1)]
    v_alphas: Tensor | None,  # [C, H, W, 1]
    v_means2d: Tensor | None,  # [C, N, 2]
    needs: frozenset[str],
) -> dict[str, Tensor]:
    """The gradients asked for, by name; ``means2d`` is that of the blending alone, without ``v_means2d``."""
    device, variant = splats.means.device, _variant(splats, view, needs)
    check_determinism(device)
    if not room.capturing(device):
        _complete(splats, view, drawn)
    given = _inputs(splats, view)
    found, sums = _room_for_gradients(splats, variant, needs)
    if "means2d" in needs:
        names = ["means2d", *(["means2d_abs"] if view.absgrad else [])]
        found |= {name: torch.empty_like(drawn.means2d) for name in names}
    gradients = {
        "v_image": None if v_colors is None else v_colors.contiguous(),
        "v_alphas": None if v_alphas is None else v_alphas.contiguous(),
        "v_means2d": _aligned(v_means2d), "sums": sums,
    }  # fmt: skip
    on_screen = {name: getattr(drawn, name) for name in ("means2d", "radii", "depths", "conics")}
    outputs = {f"out_{name}": tensor for name, tensor in found.items()}
    frame = pack_frame(given | on_screen | drawn.saved.tensors | gradients | outputs)
    tiles, splats_a_block = drawn.saved.tensors["order"].shape[0], THREADS["splat_project_bwd_kernel"]
    blocks = -(-given["num_splats"] // splats_a_block)
    kernels = [("splat_blend_bwd_kernel", (tiles, 1)), ("splat_project_bwd_kernel", (blocks, 1))]
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

    With one camera the sums have no memory of their own if that of the gradients made from them will do.
    """
    floats: dict[str, Any] = {"dtype": torch.float32, "device": splats.means.device}
    num_cameras, num_splats = splats.viewmats.shape[0], splats.means.shape[0]
    found: dict[str, Tensor] = {}
    sums = None
    if num_cameras == 1 and variant.sums <= 11 and needs.issuperset(PLANES):
        shapes = {name: getattr(splats, name).shape for name in PLANES}
        # One fill for all four; each begins where 16 bytes can be read at once.
        sizes = [-(-shape.numel() // 4) * 4 for shape in shapes.values()]
        parts = torch.zeros(sum(sizes), **floats).split(sizes)
        pairs = zip(shapes.items(), parts, strict=True)
        found = {name: part[: shape.numel()].view(shape) for (name, shape), part in pairs}
    else:
        sums = torch.zeros(num_cameras, num_splats, variant.sums, **floats)
    for name in sorted(needs - found.keys() - {"means2d"}):
        kind = torch.zeros if name in ("viewmats", "Ks", "backgrounds") else torch.empty
        found[name] = kind(getattr(splats, name).shape, **floats)
    return found, sums
