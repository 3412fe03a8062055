"""What frames of one size and kind have in common, worked out once: numbers, shapes, places in memory, grids.

A small frame takes the host longer than the card. What the host must do for each frame is then to ask for memory and to
tell the kernels addresses in it; all else is remembered here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from hotlap.kernels.splat.cuda_program import THREADS, Kernels, frame_type
from hotlap.kernels.splat.cuda_room import Key, needed_by_graphs
from hotlap.kernels.splat.frame import TILE, View


class Layout(NamedTuple):
    """One piece of memory for several lists."""

    size: int
    """Numbers of 4 bytes."""
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
    channels: int
    """Of a pixel, with the depth."""
    num_tiles: int
    """Of all cameras."""
    numbers: Any
    """The structure of ``frame.cuh`` with its sizes and options; no address is known but that of the graphs' count."""
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
    backward: Kernels
    """Of which the first clears gradients for the sums that will lie in their memory."""


@lru_cache(maxsize=256)
def plan_frame(view: View, key: Key, num_splats: int, colors: tuple[int, ...], capacity: int) -> Plan:
    """The plan of a frame with colours of that shape and room for so many pairs."""
    frame, sh, num_cameras = _numbers(view, key, num_splats, colors), view.sh_degree is not None, key.cameras
    frame.capacity = capacity
    rows, pixels = num_cameras * num_splats, num_cameras * frame.width * frame.height
    num_tiles = num_cameras * frame.tiles_x * frame.tiles_y
    blocks = _blocks(num_splats, "splat_project_fwd_kernel")  # of the pairs' kernel too
    first = (
        ("splat_clear_kernel", _blocks(num_tiles, "splat_clear_kernel"), 1),
        ("splat_project_fwd_kernel", blocks, num_cameras),
        ("splat_scan_kernel", 1, 1),
        ("splat_pair_kernel", blocks, num_cameras),
    )
    blend = ("splat_blend_fwd_kernel", num_tiles, 1)
    return Plan(
        key=key,
        capacity=capacity,
        num_tiles=num_tiles,
        numbers=frame,
        num_splats=num_splats,
        channels=(3 if sh else colors[-1]) + int(view.depth),
        facts=_lay_out(radii=2 * rows, depths=rows, conics=3 * rows, tiles_per_splat=rows),
        kept=_lay_out(
            shade=rows * 4 if sh else rows, light=pixels, lasts=pixels, order=num_tiles, ranges=num_tiles + 1,
            ids=capacity,
        ),
        now=_lay_out(keys=2 * capacity, keys_spare=2 * capacity, reached=rows, cursors=num_tiles),
        long=(*first, ("splat_sort_kernel", num_tiles, 1), blend),
        short=(*first, ("splat_sort_kernel", _blocks(num_tiles * 32, "splat_sort_kernel"), 1), blend),
        backward=(
            ("splat_clear_bwd_kernel", _blocks(4 * num_splats, "splat_clear_bwd_kernel"), 1),
            ("splat_blend_bwd_kernel", num_tiles, 1),
            ("splat_project_bwd_kernel", _blocks(num_splats, "splat_project_bwd_kernel"), 1),
        ),
    )  # fmt: skip


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
    frame.coefficients = colors[1] if sh else 0
    frame.colors_by_camera = not sh and len(colors) == 3
    frame.raw, frame.antialiased = int(view.raw), int(view.antialiased)
    frame.near_depth, frame.far_depth = view.near, min(view.far, 3.4e38)
    frame.eps2d, frame.radius_clip = view.eps2d, view.radius_clip
    frame.needed = needed_by_graphs(key.device).data_ptr()
    return frame


def _lay_out(**sizes: int) -> Layout:
    """Lists of so many numbers of 4 bytes, one behind the other; 16 bytes can be read at the beginning of each."""
    places, end = [], 0
    for name, size in sizes.items():
        places.append((name, 4 * end))
        end += (size + 3) & ~3
    return Layout(end, tuple(places))
