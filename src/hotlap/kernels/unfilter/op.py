"""Rows as PNG stores them, each byte as how far a guess from its neighbours is off, back to pixels."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from hotlap.base.errors import ShapeError
from hotlap.kernels.choose import Choice, choose
from hotlap.kernels.unfilter import cpu
from hotlap.kernels.unfilter.reference import unfilter_ref

IMPLS = ("cpu", "reference")
MOST_KIND = 4


@functools.cache
def choose_impl(impl: str = "auto") -> Choice:
    """Which implementation runs here, and why not the faster one."""
    return choose({"cpu": cpu.why_not, "reference": lambda: ""}, impl)


def unfilter(lines: np.ndarray, step: int, *, impl: str = "auto") -> np.ndarray:  # [H, 1 + W * step] -> [H, W, step]
    """The bytes of a picture from its rows, each its filter's number and then ``step`` bytes a pixel."""
    if lines.dtype != np.uint8 or lines.ndim != 2 or lines.shape[1] <= step or (lines.shape[1] - 1) % step:
        raise ShapeError(
            f"lines are {lines.dtype} {list(lines.shape)}", expected=f"uint8 [H, 1 + W * {step}], of one pixel or more"
        )
    if (unknown := lines[:, 0][lines[:, 0] > MOST_KIND]).size:
        raise ValueError(f"a row has the filter {unknown[0]}")
    return cpu.unfilter(lines, step) if choose_impl(impl).impl == "cpu" else unfilter_ref(lines, step)


def compiled_rows() -> Callable[[np.ndarray, int], np.ndarray] | None:
    """``unfilter`` where it is fast, for readers of pictures; else None."""
    return unfilter if choose_impl().impl == "cpu" else None


def warm_up() -> None:
    """Compiles what rows need, or loads what was compiled before."""
    if (rows := compiled_rows()) is not None:
        rows(np.frombuffer(bytes(4), np.uint8).reshape(1, 4), 3)
