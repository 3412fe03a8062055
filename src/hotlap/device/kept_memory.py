"""The C library's habits: whether memory that was freed is kept for the next tensor, or goes back to the system.

Large tensors are mapped afresh by default, and every page of them is cleared by the kernel when it is first touched. A
step on a CPU may take as long for that as for its work.
"""

from __future__ import annotations

import ctypes
import sys

from hotlap.base.errors import UsageError

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
LARGE = 2**30
"""Bytes of a tensor that is still taken from memory that was kept."""
NEVER = 2**31 - 1
_kept = False


def can_keep_memory() -> bool:
    """Whether the C library can be told: glibc can, others have nothing of the kind."""
    return sys.platform.startswith("linux") and hasattr(ctypes.CDLL(None), "gnu_get_libc_version")


def keep_memory(*, largest: int = LARGE, most: int = NEVER) -> bool:
    """Keeps freed memory from now on, for the rest of the process: arrays up to ``largest`` bytes, and ``most`` in all.

    Says whether that could be done.
    """
    global _kept
    if not can_keep_memory():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    large = mallopt(M_MMAP_THRESHOLD, largest) or mallopt(M_MMAP_MAX, 0)  # older ones refuse more than 32 MiB
    _kept = bool(large and mallopt(M_TRIM_THRESHOLD, most)) or _kept
    return _kept


def require_kept_memory() -> None:
    """Keeps freed memory, or says that this cannot be done here."""
    if not keep_memory():
        raise UsageError(
            "keep_memory is asked for, but this C library cannot keep freed memory", expected="glibc, on Linux",
            remedy="Leave keep_memory out",
        )  # fmt: skip


def is_memory_kept() -> bool:
    """Whether this process was told to, and could be."""
    return _kept
