"""The host's processor and memory as this process may use them: affinity, cgroup limits, vector features."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Host:
    """What this process may use of the host, not what the host has."""

    cpu_model: str
    logical_cpus: int
    """In the affinity set."""
    physical_cores: int
    """Distinct cores behind the affinity set."""
    quota_cpus: float | None
    """The cgroup's CPU quota, in CPUs; None when there is none."""
    flags: frozenset[str]
    memory_bytes: int
    memory_limit_bytes: int | None
    """The cgroup's memory limit; None when there is none."""
    shm_bytes: int | None
    """Size of /dev/shm; None where there is none."""

    @property
    def usable_cores(self) -> int:
        """Threads worth starting: physical cores within affinity, no more than the quota."""
        cores = max(1, self.physical_cores)
        return max(1, min(cores, int(self.quota_cpus))) if self.quota_cpus else cores

    @property
    def usable_cpus(self) -> int:
        """Processes that can run at once: logical CPUs within affinity, no more than the quota."""
        return max(1, min(self.logical_cpus, int(self.quota_cpus))) if self.quota_cpus else max(1, self.logical_cpus)

    @property
    def has_fast_bf16(self) -> bool:
        """Whether the processor multiplies bf16 itself; elsewhere bf16 is emulated and slower."""
        return bool(self.flags & {"amx_bf16", "avx512_bf16", "avx512bf16", "bf16", "sve_bf16"})


def read_host(root: Path = Path("/")) -> Host:
    """The host seen through ``root``'s /proc and /sys (another root serves tests)."""
    cpuinfo = _read(root / "proc/cpuinfo")
    affinity = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    return Host(
        cpu_model=_cpuinfo_field(cpuinfo, "model name") or platform.processor() or platform.machine(),
        logical_cpus=len(affinity),
        physical_cores=_physical_cores(root, affinity),
        quota_cpus=cpu_quota(root),
        flags=frozenset((_cpuinfo_field(cpuinfo, "flags") or _cpuinfo_field(cpuinfo, "Features")).split()),
        memory_bytes=_total_memory(root),
        memory_limit_bytes=memory_limit(root),
        shm_bytes=_shm_bytes(root),
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _cpuinfo_field(text: str, key: str) -> str:
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def _physical_cores(root: Path, affinity: Sequence[int]) -> int:
    cores = set()
    for cpu in affinity:
        siblings = _read(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").strip()
        cores.add(siblings or f"cpu{cpu}")
    return len(cores)


def cpu_quota(root: Path = Path("/")) -> float | None:
    """CPUs the cgroups grant (``cpu.max`` in v2, ``cpu.cfs_quota_us`` in v1); the tightest of a hierarchy counts."""
    found = []
    for folder in cgroup_folders(root, "cpu"):
        quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
        if not quota:
            quota = _read(folder / "cpu.cfs_quota_us").strip()
            period = _read(folder / "cpu.cfs_period_us").strip()
        if quota.isdigit() and period.isdigit():
            found.append(int(quota) / int(period))
    return min(found, default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes the cgroups grant (``memory.max`` in v2, ``memory.limit_in_bytes`` in v1); the tightest counts."""
    names = ("memory.max", "memory.limit_in_bytes")
    texts = [_read(folder / name).strip() for folder in cgroup_folders(root, "memory") for name in names]
    return min((int(text) for text in texts if text.isdigit() and int(text) < 1 << 60), default=None)


def memory_available(root: Path = Path("/")) -> int | None:
    """Bytes that may still be taken: what the host has left, or what the tightest cgroup leaves; None when unknown."""
    found = [int(line.split()[1]) * 1024 for line in _lines(root / "proc/meminfo") if line.startswith("MemAvailable:")]
    names = (("memory.max", "memory.current", "inactive_file"),
             ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"))  # fmt: skip
    for folder in cgroup_folders(root, "memory"):
        for limit_name, used_name, cache_name in names:
            limit, used = _read(folder / limit_name).strip(), _read(folder / used_name).strip()
            if limit.isdigit() and used.isdigit() and int(limit) < 1 << 60:
                # Cached files count as used, but the kernel drops them before it kills anyone.
                cache = _counter(folder / "memory.stat", cache_name) or 0
                found.append(max(0, int(limit) - int(used) + cache))
    return min(found, default=None)


def oom_kill_count(root: Path = Path("/")) -> int | None:
    """How many processes of this cgroup the kernel has killed for memory; None where it does not say."""
    for folder in cgroup_folders(root, "memory"):
        for name in ("memory.events", "memory.oom_control"):  # v2, v1
            count = _counter(folder / name, "oom_kill")
            if count is not None:
                return count
    return None


def _counter(path: Path, name: str) -> int | None:
    for line in _lines(path):
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return None


def _lines(path: Path) -> list[str]:
    return _read(path).splitlines()


def cgroup_folders(root: Path, controller: str) -> list[Path]:
    """This process's cgroup folder and its parents, innermost first, for v2 and for v1's ``controller``."""
    mount = root / "sys/fs/cgroup"
    folders = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, inner = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        base = mount / controller if controllers else mount
        here = base / inner.lstrip("/")
        folders += [here, *[p for p in here.parents if p == base or base in p.parents]]
    return [*folders, mount, mount / controller]


def _total_memory(root: Path) -> int:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    # Systems without /proc/meminfo; asked of the C library so that no package is needed.
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


def _shm_bytes(root: Path) -> int | None:
    stat = _shm_stat(root)
    return stat.f_frsize * stat.f_blocks if stat else None


def shm_free_bytes(root: Path = Path("/")) -> int | None:
    """What is left of /dev/shm, through which the processes of a loader hand over their batches; None without it."""
    stat = _shm_stat(root)
    return stat.f_frsize * stat.f_bavail if stat else None


def _shm_stat(root: Path) -> os.statvfs_result | None:
    try:
        return os.statvfs(root / "dev/shm")
    except OSError:
        return None
