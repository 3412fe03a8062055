"""Whether memory has room for what is drawn, and what is said where it has none: what helps, no stack of calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from hotlap.base.errors import OutOfMemory
from hotlap.base.format import format_bytes
from hotlap.base.raised import few_words, first_line
from hotlap.data.scene import Pinhole
from hotlap.device.memory import free_bytes, is_out_of_memory

PIXEL_BYTES = 100
"""A training step on a CPU needs at least so much for each pixel: 107 were seen with l2, 130 to 138 with l1-ssim."""
SMALLER = "Take smaller pictures (--factor 2, --max-side 1600)"


def check_room(cameras: Iterable[Pinhole], device: torch.device) -> None:
    """Refuses pictures that no step on the host's memory has room for: systems end such processes without a word."""
    if device.type != "cpu":
        return
    largest = max(cameras, key=lambda camera: camera.width * camera.height)
    needed, free = PIXEL_BYTES * largest.width * largest.height, free_bytes(device)
    if needed > free:
        raise OutOfMemory(
            f"a step on a picture of {largest.width}x{largest.height} pixels needs more than {format_bytes(needed)} of "
            f"memory, and {format_bytes(free)} are free",
            remedy=SMALLER,
        )


@contextmanager
def told_of_memory(what: str, remedy: str) -> Iterator[None]:
    """Says what has no room and what helps, where memory runs out on the card or the host."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(f"{what} has no room in memory: {few_words(first_line(error))}", remedy=remedy) from error
