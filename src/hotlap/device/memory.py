"""Peak memory, three ways, and out-of-memory errors told from others."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotlap.device.nvml import Nvml

if TYPE_CHECKING:
    import torch

_OOM_WORDS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Peak memory, three ways, because workspaces, graphs and the context live outside the allocator."""

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    """Growth of the whole device's used memory over the empty process."""
    host_rss_bytes: int | None = None
    num_alloc_retries: int = 0
    num_ooms: int = 0


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out, on the device or on the host."""
    import torch

    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(word.lower() in str(error).lower() for word in _OOM_WORDS)


def peak_rss_bytes() -> int:
    """The most memory this process has held on the host."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class PeakMemory:
    """Follows one process's peak memory from before its first use of the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._rss = peak_rss_bytes()
        self._used = self._device_used()

    def _device_used(self) -> int | None:
        """The card's used memory as the driver counts it; asks CUDA for nothing, so that no context appears."""
        if self._device.type != "cuda":
            return None
        with Nvml() as nvml:
            cards = nvml.cards()
            states = [nvml.state(nvml.handle(card.uuid)) for card in cards]
        used = [s.memory_used_bytes for s in states if s is not None and s.memory_used_bytes is not None]
        return sum(used) if used else None

    def read(self) -> Memory:
        """The peaks so far."""
        import torch

        if self._device.type != "cuda":
            return Memory(host_rss_bytes=peak_rss_bytes() - self._rss)
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats(self._device)
        now = self._device_used()
        return Memory(
            allocated_bytes=torch.cuda.max_memory_allocated(self._device),
            reserved_bytes=torch.cuda.max_memory_reserved(self._device),
            device_used_bytes=None if now is None or self._used is None else max(0, now - self._used),
            host_rss_bytes=peak_rss_bytes() - self._rss,
            num_alloc_retries=int(stats.get("num_alloc_retries", 0)),
            num_ooms=int(stats.get("num_ooms", 0)),
        )
