"""Batches on the device before they are needed: the next one is copied while a step runs."""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hotlap.base.errors import ConfigError
from hotlap.device.layout import laid_out
from hotlap.engine.loader import Loaded
from hotlap.measure.session import map_tensors

if TYPE_CHECKING:
    from hotlap.device.layout import Layout


@functools.cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for the copies of all epochs: each stream has memory of its own."""
    return torch.cuda.Stream(device)


class DevicePrefetcher:
    """The same batches in the same order, each on ``device``, with up to ``depth`` further ones on their way.

    On a card the copies go through a stream of their own, and the consumer's stream, not the host, waits for them. They
    overlap with its work only from pinned memory. A small batch in one piece is one copy in the consumer's own stream,
    which takes less of the host than handing it from stream to stream. On the CPU nothing is copied or read ahead.
    """

    def __init__(
        self, loaded: Iterable[Loaded], device: torch.device, *, layout: Layout | None = None, depth: int = 1
    ) -> None:
        """``layout`` is the memory format that floating-point tensors get; by default they stay as they are."""
        if depth < 0:
            raise ConfigError(f"depth = {depth} is negative", expected="0 or more batches read ahead")
        self._source = iter(loaded)
        self._device, self._layout = device, layout or {}
        self._stream = _copy_stream(device) if device.type == "cuda" else None
        self._depth = depth if self._stream is not None else 0
        self._ready: deque[tuple[Loaded, torch.cuda.Event | None]] = deque()
        self._end: BaseException | None = None

    def __iter__(self) -> Iterator[Loaded]:
        return self

    def __next__(self) -> Loaded:
        while self._end is None and len(self._ready) <= self._depth:
            self._read_one()
        if not self._ready:
            assert self._end is not None
            raise self._end
        loaded, copied = self._ready.popleft()
        if copied is not None:
            torch.cuda.current_stream(self._device).wait_event(copied)
        return loaded

    def _read_one(self) -> None:
        """Reads and sends off one batch. An error is kept until the good batches before it have been used."""
        try:
            loaded = next(self._source)
        except Exception as error:  # noqa: BLE001 - raised as it is once its turn comes
            self._end = error
            return
        if self._stream is None or loaded.packed is not None:
            self._ready.append((self._placed(loaded), None))
            return
        # The memory of earlier batches belongs to the copying stream and may be given to this one: whatever the
        # consumer has been told to do with them comes first. That costs a step less than a mark on every tensor.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            placed = self._placed(loaded)
            self._ready.append((placed, self._stream.record_event()))

    def _placed(self, loaded: Loaded) -> Loaded:
        if self._device.type == "cpu" and not self._layout:
            return loaded
        if loaded.packed is None:
            return dataclasses.replace(loaded, batch=map_tensors(loaded.batch, self._place))
        packed = loaded.packed.to(self._device)
        batch = packed.unpacked()
        return dataclasses.replace(loaded, batch=map_tensors(batch, self._laid_out), packed=packed)

    def _place(self, tensor: Tensor) -> Tensor:
        return self._laid_out(tensor.to(self._device, non_blocking=True))

    def _laid_out(self, tensor: Tensor) -> Tensor:
        return laid_out(tensor, self._layout)
