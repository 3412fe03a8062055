"""What frames of one size and kind have in common, worked out once: numbers, shapes, places in memory, grids.

A small frame takes the host longer than the card. What the host must do for each frame is then to ask for memory and to
tell the kernels addresses in it; all else is remembered here.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hotlap.kernels.splat.cuda_program import DRAWN_WITH, THREADS, Kernels, frame_type
from hotlap.kernels.splat.cuda_room import Key, needed_by_graphs
from hotlap.kernels.splat.frame import INPUTS, TILE, View

FEW_SPLATS = 2**18
"""Up to so many, over all cameras, the pixels' sums have memory of their own, 36 bytes a splat: the projection clears
it, and the backward pass has a kernel less to launch."""
RUN = 2048
"""Pairs that a block sorts, as ``SORT_MOST`` in ``order.cu``."""
PART = 256
"""Pairs that a block of the backward pass takes of a long list."""
LONG_LISTS = 256
"""Lists are cut where the mean tile has room for so many pairs, and for a quarter as many as there are tiles: where
these are few, the card would wait for the longest lists. Cuts take 16 bytes a pair of memory."""
FEWEST_CUT = 2**18
"""Pairs that there must be room for: a small frame is paced by the host, and has two kernels more with cuts."""
MOST_CUT_CHANNELS = 4
"""As ``CUTS`` in ``blend.cuh``."""
BASES = (*INPUTS, "image", "alphas", "means2d", "facts", "kept", "now", "told", "needed")
"""The pieces of memory that a frame is drawn with, in the order in which their addresses are told."""


class Layout(NamedTuple):
    """One piece of memory for several lists."""

    like: Tensor
    """int32, as many numbers as the piece has; ``torch.empty_like`` makes one."""
    places: tuple[tuple[str, int], ...]
    """The lists' names in ``frame.cuh``, each with the byte where it begins."""


class Plan(NamedTuple):
    """How a frame is drawn, but for addresses."""

    key: Key
    """Which frames need about the same room."""
    capacity: int
    """Pairs that there is room for."""
    num_splats: int
    """Of a camera."""
    num_tiles: int
    """Of all cameras."""
    numbers: Any
    """The structure of ``frame.cuh`` with its sizes and options, and without addresses."""
    needed: int
    """The address of the graphs' count."""
    places: tuple[tuple[int, int], ...]
    """Where what a frame is drawn with lies, in the order of the structure: which of ``BASES``, and bytes behind it."""
    results: tuple[Tensor, Tensor, Tensor]
    """Like colours, alphas and centres: ``torch.empty_like`` makes them."""
    facts: Layout
    """What is known of each splat, which users are given."""
    kept: Layout
    """The lists that the backward pass needs."""
    now: Layout
    """Those that only the forward pass needs."""
    long: Kernels
    """Those of the forward pass."""
    short: Kernels
    """The same where most tiles have few pairs."""
    few: Kernels
    """The same where tiles are few: the blending kernel sorts."""
    backward: Kernels
    """Of which the first clears gradients for the sums that will lie in their memory."""


class Plans:
    """Those of frames of one size and kind, which differ in the room for pairs."""

    def __init__(self, view: View, key: Key, num_splats: int, colors: tuple[int, ...]) -> None:
        self.key, self.num_splats = key, num_splats
        self._view, self._colors = view, colors
        self._known: dict[int, Plan] = {}

    def with_room(self, capacity: int) -> Plan:
        """The plan of a frame that has room for so many pairs; of those before only the last is remembered."""
        plan = self._known.get(capacity)
        if plan is None:
            plan = plan_frame(self._view, self.key, self.num_splats, self._colors, capacity)
            self._known = {capacity: plan}
        return plan


@lru_cache(maxsize=256)
def plans_of(view: View, device: torch.device, num_cameras: int, num_splats: int, colors: tuple[int, ...]) -> Plans:
    """Those of frames with colours of that shape."""
    return Plans(view, Key(device, num_cameras, view.height, view.width), num_splats, colors)


def plan_frame(view: View, key: Key, num_splats: int, colors: tuple[int, ...], capacity: int) -> Plan:
    """The plan of a frame with colours of that shape and room for so many pairs."""
    frame, sh, num_cameras = _numbers(view, key, num_splats, colors), view.sh_degree is not None, key.cameras
    frame.capacity = capacity
    screen, channels = (num_cameras, frame.height, frame.width), (3 if sh else colors[-1]) + int(view.depth)
    rows, pixels = num_cameras * num_splats, num_cameras * frame.width * frame.height
    num_tiles = num_cameras * frame.tiles_x * frame.tiles_y
    frame.part = PART if is_cut(num_tiles, channels, capacity) else 0
    parts = capacity // PART if frame.part else 0
    blocks = frame.project_blocks  # of the pairs' kernel too
    first = (
        ("splat_clear_kernel", _blocks(num_tiles + 1, "splat_clear_kernel"), 1),
        ("splat_project_fwd_kernel", blocks, num_cameras),
        ("splat_pair_kernel", blocks, num_cameras),
    )
    blend = ("splat_blend_fwd_kernel", num_tiles, 1)
    facts = _lay_out(key.device, radii=2 * rows, depths=rows, conics=3 * rows, tiles_per_splat=rows)
    kept = _lay_out(
        key.device, shade=rows * 4 if sh else rows, light=pixels, lasts=pixels, order=num_tiles,
        ranges=num_tiles + 1, ids=capacity, sums=rows * frame.sums_each,
        marks=parts * (1 + channels) * TILE * TILE, shown=pixels * channels if frame.part else 0,
    )  # fmt: skip
    now = _lay_out(key.device, keys=2 * capacity, keys_spare=2 * capacity, reached=rows, cursors=num_tiles + 1)
    return Plan(
        key=key,
        capacity=capacity,
        num_tiles=num_tiles,
        numbers=frame,
        needed=needed_by_graphs(key.device).data_ptr(),
        places=_places(facts=facts, kept=kept, now=now),
        results=(
            _like(key.device, torch.float32, *screen, channels),
            _like(key.device, torch.float32, *screen, 1),
            _like(key.device, torch.float32, num_cameras, num_splats, 2),
        ),
        num_splats=num_splats,
        facts=facts,
        kept=kept,
        now=now,
        long=(
            *first, ("splat_sort_kernel", num_tiles + capacity // RUN, 1), ("splat_merge_kernel", num_tiles, 1), blend,
        ),
        short=(*first, ("splat_sort_kernel", _blocks(num_tiles * 32, "splat_sort_kernel"), 1), blend),
        few=(*first, blend),
        backward=(
            ("splat_clear_bwd_kernel", _blocks(4 * num_splats, "splat_clear_bwd_kernel"), 1),
            ("splat_blend_bwd_kernel", num_tiles + parts, 1),
            ("splat_project_bwd_kernel", _blocks(num_splats, "splat_project_bwd_kernel"), 1),
        ),
    )  # fmt: skip


def is_cut(num_tiles: int, channels: int, capacity: int) -> bool:
    """Whether lists are cut for the backward pass."""
    return channels <= MOST_CUT_CHANNELS and capacity >= max(FEWEST_CUT, num_tiles * max(LONG_LISTS, num_tiles // 4))


def _blocks(threads: int, kernel: str) -> int:
    """Of a kernel that needs so many threads."""
    return -(-threads // THREADS[kernel])


def _numbers(view: View, key: Key, num_splats: int, colors: tuple[int, ...]) -> Any:
    """A frame with its sizes and options."""
    sh, frame = view.sh_degree is not None, frame_type()()
    frame.num_splats, frame.num_cameras = num_splats, key.cameras
    # Users' sizes and flags may be NumPy's, which the structure does not take.
    frame.width, frame.height = int(view.width), int(view.height)
    frame.tiles_x, frame.tiles_y = -(-frame.width // TILE), -(-frame.height // TILE)
    # One at least: the last of them makes places of the counts, also of none.
    frame.project_blocks = max(1, _blocks(num_splats, "splat_project_fwd_kernel"))
    if key.cameras * num_splats <= FEW_SPLATS:
        frame.sums_each = 6 + (3 if sh else colors[-1]) + int(view.depth) + 2 * int(view.absgrad)
    frame.coefficients = colors[1] if sh else 0
    frame.colors_by_camera = not sh and len(colors) == 3
    frame.raw, frame.antialiased = int(view.raw), int(view.antialiased)
    frame.near_depth, frame.far_depth = view.near, min(view.far, 3.4e38)
    frame.eps2d, frame.radius_clip = view.eps2d, view.radius_clip
    return frame


def _lay_out(device: torch.device, **sizes: int) -> Layout:
    """Lists of so many numbers of 4 bytes, one behind the other; 16 bytes can be read at the beginning of each."""
    places, end = [], 0
    for name, size in sizes.items():
        places.append((name, 4 * end))
        end += (size + 3) & ~3
    return Layout(_like(device, torch.int32, end), tuple(places))


def _places(**layouts: Layout) -> tuple[tuple[int, int], ...]:
    """Of what a frame is drawn with, from the layouts of those of ``BASES`` that hold several lists."""
    found = {name: (number, 0) for number, name in enumerate(BASES)}
    for piece, layout in layouts.items():
        found |= {name: (BASES.index(piece), place) for name, place in layout.places}
    return tuple(found[name] for name in DRAWN_WITH)


def _like(device: torch.device, dtype: torch.dtype, *shape: int) -> Tensor:
    """Of which ``torch.empty_like`` makes contiguous memory, sooner than from a shape and a type; takes none itself."""
    one = _one(device, dtype)
    return one.expand(shape) if math.prod(shape) else one.new_empty(shape)


@cache
def _one(device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.zeros(1, dtype=dtype, device=device)
