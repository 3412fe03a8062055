"""A small batch in one piece on its way from a loader's worker to the device.

torch hands every tensor of a worker over as a file of shared memory that is fetched through a socket: about half a
millisecond of the trainer's own process for each, however small it is. In one piece they are one file, pinned at once
and copied to a card at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hotlap.workload import Batch

SMALL_BYTES = 256 * 2**10
"""Up to so many, the calls around a copy cost more than the copy."""
ALIGNMENT = 512
"""Bytes; as every tensor is aligned that has memory of its own on a card, since kernels are chosen by it."""


class Piece(NamedTuple):
    """Where one tensor lies."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int
    """In elements, as the strides."""


@dataclass(frozen=True, kw_only=True)
class Packed:
    """The tensors of one batch in one piece of memory, which torch's loader pins as a whole."""

    kind: type
    """dict, list or tuple."""
    names: tuple[Any, ...]
    """Of a dict's tensors."""
    pieces: tuple[Piece, ...]
    memory: Tensor  # [bytes] uint8

    def pin_memory(self) -> Packed:
        return self._in(self.memory.pin_memory())

    def to(self, device: torch.device) -> Packed:
        """On ``device``, by one copy that the host does not wait for if it is from pinned memory."""
        return self._in(self.memory.to(device, non_blocking=True))

    def _in(self, memory: Tensor) -> Packed:
        return Packed(kind=self.kind, names=self.names, pieces=self.pieces, memory=memory)

    def unpacked(self) -> Batch:
        """The batch, its tensors as views of the memory."""
        typed: dict[torch.dtype, Tensor] = {}
        tensors = []
        for dtype, shape, strides, start in self.pieces:
            if dtype not in typed:
                typed[dtype] = self.memory.view(dtype)
            tensors.append(typed[dtype].as_strided(shape, strides, start))
        return dict(zip(self.names, tensors, strict=True)) if self.kind is dict else self.kind(tensors)


def pack(batch: Batch, *, shared: bool = False) -> Packed | None:
    """A flat dict, list or tuple of few bytes in one piece, in shared memory if asked; None for any other batch."""
    if type(batch) not in (dict, list, tuple):
        return None
    tensors = list(batch.values() if isinstance(batch, dict) else batch)
    if not all(map(_is_plain, tensors)) or not 0 < sum(tensor.nbytes for tensor in tensors) <= SMALL_BYTES:
        return None
    if len({tensor.untyped_storage().data_ptr() for tensor in tensors}) < len(tensors):
        return None  # some share memory, and a change of one is a change of the other
    starts, end = [], 0
    for tensor in tensors:
        starts.append(end)
        end += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    memory = torch.zeros(end, dtype=torch.uint8)
    if shared:
        memory.share_memory_()
    for tensor, start in zip(tensors, starts, strict=True):
        memory[start : start + tensor.nbytes] = tensor.detach().reshape(-1).view(torch.uint8)
    pieces = tuple(
        Piece(tensor.dtype, tuple(tensor.shape), tensor.stride(), start // tensor.itemsize)
        for tensor, start in zip(tensors, starts, strict=True)
    )
    return Packed(kind=type(batch), names=tuple(batch) if type(batch) is dict else (), pieces=pieces, memory=memory)


def _is_plain(tensor: Any) -> bool:
    """Whether type, shape and bytes are all there is to it."""
    return (
        type(tensor) is Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not (tensor.is_quantized or tensor.is_complex() or tensor.is_neg())
    )
