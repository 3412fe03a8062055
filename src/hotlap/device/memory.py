"""Peak memory, three ways, and out-of-memory errors told from others."""

from __future__ import annotations

import contextlib
import gc
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hotlap.device.host import cgroup_folders
from hotlap.device.nvml import Nvml

if TYPE_CHECKING:
    import torch

_OOM_WORDS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "unable to find an engine to execute",  # cuDNN, when there is no room for the workspace of any algorithm
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


def release_memory() -> None:
    """Gives back what nobody holds: exceptions leave cycles behind, and the allocator keeps what it once had."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out, on the device or on the host."""
    import torch

    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(word.lower() in str(error).lower() for word in _OOM_WORDS)


def free_bytes(device: torch.device) -> int:
    """Memory that ``device`` has left: the card's, or the host's within the limit of this process's cgroup."""
    import torch

    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    import psutil

    available, granted = int(psutil.virtual_memory().available), cgroup_free_bytes()
    return available if granted is None else min(available, granted)


def cgroup_free_bytes(root: Path = Path("/")) -> int | None:
    """What the tightest cgroup still grants; cached files count as free. None without a limit."""
    found = []
    for folder in cgroup_folders(root, "memory"):
        limit = _number_in(folder, "memory.max", "memory.limit_in_bytes")
        used = _number_in(folder, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < 1 << 60:
            found.append(max(0, limit - used + _cached_bytes(folder)))
    return min(found, default=None)


def _number_in(folder: Path, *names: str) -> int | None:
    for name in names:
        with contextlib.suppress(OSError, ValueError):
            return int((folder / name).read_text())
    return None


def _cached_bytes(folder: Path) -> int:
    with contextlib.suppress(OSError):
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "inactive_file" and value.isdigit():
                return int(value)
    return 0


class PeakRss:
    """The growth of this process's memory on the host, from now on to its peak.

    Linux lets a process forget its earlier peak; elsewhere the peak of its whole life is all there is, so that growth
    below what importing torch once took does not show.
    """

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self._start = min(_status_bytes("VmRSS") or peak_rss_bytes(), peak_rss_bytes())

    def growth_bytes(self) -> int:
        return max(0, peak_rss_bytes() - self._start)


def peak_rss_bytes() -> int:
    """The most memory this process has held on the host, since it last forgot its peak."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return _status_bytes("VmHWM") or (peak if sys.platform == "darwin" else peak * 1024)


def _status_bytes(field: str) -> int:
    """One size of /proc/self/status; 0 where there is none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":")), 0)


class PeakMemory:
    """Follows one process's peak memory from before its first use of the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._rss = PeakRss()
        self._used = self._cards_used()

    def _cards_used(self) -> dict[str, int]:
        """Each card's used memory as the driver counts it; asks CUDA for nothing, so that no context appears."""
        if self._device.type != "cuda":
            return {}
        with Nvml() as nvml:
            states = {card.uuid: nvml.state(nvml.handle(card.uuid)) for card in nvml.cards()}
        used = {uuid: state.memory_used_bytes for uuid, state in states.items() if state is not None}
        return {uuid: size for uuid, size in used.items() if size is not None}

    def _growth_bytes(self) -> int | None:
        """What the device's own card holds more than before; others may be filled by anyone meanwhile."""
        import torch

        uuid = str(torch.cuda.get_device_properties(self._device).uuid)
        uuid = f"GPU-{uuid.removeprefix('GPU-')}"
        before, now = self._used.get(uuid), self._cards_used().get(uuid)
        return None if before is None or now is None else max(0, now - before)

    def read(self) -> Memory:
        """The peaks so far."""
        import torch

        if self._device.type != "cuda":
            return Memory(host_rss_bytes=self._rss.growth_bytes())
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats(self._device)
        return Memory(
            allocated_bytes=torch.cuda.max_memory_allocated(self._device),
            reserved_bytes=torch.cuda.max_memory_reserved(self._device),
            device_used_bytes=self._growth_bytes(),
            host_rss_bytes=self._rss.growth_bytes(),
            num_alloc_retries=int(stats.get("num_alloc_retries", 0)),
            num_ooms=int(stats.get("num_ooms", 0)),
        )
