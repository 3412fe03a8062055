"""How much memory a frame gets for its pairs of tile and splat, whose number only the card knows.

The room is learned from the frames before. The count of each frame is written into pinned memory while the card goes on
with it; the host reads it when it is there, and need not wait. cuda.md says what this guarantees.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
import time
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hotlap.base.errors import UsageError

STEP = 2**16
"""Room for pairs is a multiple of this, so that memory of one size serves many frames."""
MOST_PAIRS = 2**30 - STEP
"""Of a frame: the kernels count up to 2**30, which stands for more."""
FIRST_FRAMES = 8
"""Frames of a size that the host waits for: a trainer's first cameras tell how much the pairs vary."""


class Key(NamedTuple):
    """Frames that need about the same room."""

    device: torch.device
    cameras: int
    height: int
    width: int


@dataclass
class _Known:
    """What the frames of one key have needed."""

    most: int
    """Pairs of the frame with the most."""
    splats: int
    """How many there were then."""
    capacity: int
    """Pairs that the next frame has memory for."""
    frames: int = 0
    """Whose count is known."""


class Room:
    """For how many pairs the next frame has memory, by device and size of the picture."""

    def __init__(self) -> None:
        self.known: dict[Key, _Known] = {}
        self.least: dict[torch.device, int] = {}

    def of(self, key: Key, num_splats: int) -> int:
        """The capacity of the next frame. Before the first, a guess: four pairs a splat."""
        known = self.known.get(key)
        if known is None and capturing(key.device):
            size = f"(cameras, height, width) = {tuple(key[1:])}"
            raise UsageError(
                f"no frame of {size} was drawn on {key.device} before this capture",
                remedy="Draw one first: the graph keeps the room for pairs that it was captured with",
            )
        capacity = known.capacity if known else _steps(max(4 * key.cameras * num_splats, 1))
        return max(capacity, self.least.get(key.device, 0))

    def most(self, key: Key) -> int | None:
        """Pairs of the frame that has had the most; None before the first."""
        return self.known[key].most if key in self.known else None

    def is_settled(self, key: Key, num_splats: int) -> bool:
        """Whether a frame can be trusted to fit: a tenth more than any before, in proportion to the splats."""
        known = self.known.get(key)
        if known is None or known.frames < FIRST_FRAMES:
            return False
        more = num_splats / max(known.splats, 1) if num_splats > known.splats else 1.0
        return known.most * 1.1 * more <= max(known.capacity, self.least.get(key.device, 0))

    def learn(self, key: Key, needed: int, num_splats: int) -> None:
        """A quarter more than the frame has needed, unless there is a tenth to spare already."""
        known = self.known.get(key)
        if known is None:
            known = self.known[key] = _Known(most=-1, splats=num_splats, capacity=0)
        known.frames += 1
        if needed > known.most:
            known.most, known.splats = needed, num_splats
        if needed * 1.1 >= known.capacity:
            known.capacity = _steps(needed * 5 // 4 + 1)

    def reserve(self, key: Key, pairs: int) -> None:
        """Frames of a size that is known have room for so many pairs at least, as a capture wants before it begins."""
        if key in self.known:
            self.known[key].capacity = max(self.known[key].capacity, _steps(pairs))


def _steps(pairs: int) -> int:
    return min(-(-pairs // STEP) * STEP, MOST_PAIRS)


ROOM = Room()


@functools.cache
def is_card(device: torch.device) -> bool:
    """Whether it is an NVIDIA card; asked once, for torch spells the type out each time."""
    return device.type == "cuda"


def capturing(device: torch.device) -> bool:
    """Whether the current stream records a CUDA graph, so that nothing may wait or ask."""
    return is_card(device) and torch.cuda.is_current_stream_capturing()


@functools.cache
def needed_by_graphs(device: torch.device) -> Tensor:
    """[2] pairs of the latest frame; the most of a captured frame that did not fit. It outlives all graphs."""
    with torch.inference_mode(False):  # or, first asked for within it, nobody outside might write it any more
        return torch.zeros(2, dtype=torch.int32, device=device)


def overflowed(device: torch.device) -> bool:
    """Whether a frame of a replayed CUDA graph had more pairs than room, so that splats are missing in it.

    The host waits for the card. Asking forgets it, and frames drawn or captured from then on have room enough.
    """
    if is_card(device) and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    needed = int(needed_by_graphs(device)[1])
    if needed:
        needed_by_graphs(device)[1] = 0
        ROOM.least[device] = max(ROOM.least.get(device, 0), _steps(needed * 5 // 4))
    return needed > 0


class Slot(NamedTuple):
    """Where one frame at a time tells its count."""

    memory: Tensor
    """[1] pinned; the number is in it."""
    number: ctypes.c_int
    """The count, below 0 until the card has told it; torch would take a hundred times as long to read it."""


class Told:
    """The count of pairs of one frame, which the host learns while the card goes on.

    The host looks at the number itself: to record and to ask an event would take it longer than to launch a kernel.
    """

    _lock = threading.RLock()
    _slots: dict[torch.device, list[Slot]] = {}  # noqa: RUF012 - one for all
    _unread: list[Told] = []  # noqa: RUF012 - one for all

    def __init__(self, key: Key, num_splats: int, capacity: int) -> None:
        self.key, self.num_splats, self.capacity = key, num_splats, capacity
        self.count: int | None = None
        self.handed_out = False
        with self._lock:
            # Pinned memory is slow to make, so that that of frames that were read serves again.
            free = self._slots.setdefault(key.device, [])
            self._slot = free.pop() if free else _make_slot(key.device)
            self._unread.append(self)
        if is_card(key.device):
            self._slot.number.value = -1
            self._stream = _stream(key.device.index, torch._C._cuda_getCurrentRawStream(key.device.index))

    @property
    def address(self) -> int:
        """Where the card writes the count."""
        return ctypes.addressof(self._slot.number)

    def wait(self) -> bool:
        """Whether the frame's pairs fitted, as soon as the card has told."""
        while self.count is None and not self._is_there():
            # Asking the stream raises what has failed on the card. Who has read it meanwhile has given the slot away.
            if self._stream.query() and not self._is_there() and self.count is None:
                raise RuntimeError(f"a frame of {self._size()} on {self.key.device} has ended without a count of pairs")
            time.sleep(0)
        return self._read() <= self.capacity

    def _is_there(self) -> bool:
        return self._slot.number.value >= 0

    def _read(self) -> int:
        with self._lock:
            if self.count is None:
                self.count = self._slot.number.value
                self._slots[self.key.device].append(self._slot)
                self._unread.remove(self)
                if self.count <= MOST_PAIRS:  # a frame that is refused is no reason for more memory
                    ROOM.learn(self.key, self.count, self.num_splats)
            return self.count

    @classmethod
    def read_those_there(cls, device: torch.device) -> None:
        """Learns from all frames whose counts the card has told meanwhile; waits for none."""
        if not cls._unread:
            return
        with cls._lock:
            here = [told for told in cls._unread if told.key.device == device]
            # One that is not there yet has, most often, all later ones behind it in the same stream.
            for told in itertools.takewhile(Told._is_there, here):
                if not told.wait():
                    told.warn()

    def warn(self) -> None:
        """Says, once, if a picture was handed out in which splats are missing."""
        if not self.handed_out:
            return
        self.handed_out = False
        warnings.warn(
            f"a frame of {self._size()} on {self.key.device} had {self.count} pairs of tile and splat and room for "
            f"{self.capacity}, so that splats are missing in its picture. Its backward pass draws it again, "
            "and later frames have more room",
            RuntimeWarning,
            stacklevel=3,
        )

    def check_limit(self) -> None:
        """Refuses a frame that no room is enough for, once its count is known."""
        if self.count is not None and self.count > MOST_PAIRS:
            raise UsageError(
                f"a frame of {self._size()} on {self.key.device} has more than {MOST_PAIRS} pairs of tile and splat",
                remedy="Draw fewer cameras at once, a smaller picture, or splats that cover less of it",
            )

    def _size(self) -> str:
        return f"(cameras, height, width) = {tuple(self.key[1:])}"


@functools.lru_cache(maxsize=64)
def _stream(index: int, handle: int) -> Any:
    """The current stream of a card, whose handle this is; torch takes long to make such an object."""
    return torch.cuda.current_stream(index)


def _make_slot(device: torch.device) -> Slot:
    memory = torch.zeros(1, dtype=torch.int32, pin_memory=is_card(device))
    return Slot(memory, ctypes.c_int.from_address(memory.data_ptr()))
