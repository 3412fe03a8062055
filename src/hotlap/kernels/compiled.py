"""How numba compiles what the CPU runs fast and loosely: the same numbers, whichever process compiled it.

What a kernel calls is compiled twice, by itself and once more within the kernel, and where operations may be reordered
the two round differently. A process that compiles would call the first, one that finds the kernel in numba's cache the
second; a training that is resumed would then not go on bit by bit. So ``inner`` functions have no copy that is called.
"""

from __future__ import annotations

from typing import Any


def fast(*liberties: str) -> dict[str, Any]:
    """Options of a kernel; ``liberties`` are LLVM's names for what may be done to floating point."""
    return {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": set(liberties)}


def inner(options: dict[str, Any]) -> dict[str, Any]:
    """The same for a function that kernels call."""
    return {**options, "forceinline": True}
