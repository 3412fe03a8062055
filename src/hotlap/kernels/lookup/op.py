"""Samples of few values: how often each occurs, and what a table makes of them."""

from __future__ import annotations

import functools

import numpy as np

from hotlap.base.errors import ShapeError
from hotlap.kernels.choose import Choice, choose
from hotlap.kernels.lookup import cpu
from hotlap.kernels.lookup.reference import count_values_ref, look_up_ref

IMPLS = ("cpu", "reference")


@functools.cache
def choose_impl(impl: str = "auto") -> Choice:
    """Which implementation runs here, and why not the faster one."""
    return choose({"cpu": cpu.why_not, "reference": lambda: ""}, impl)


def count_values(samples: np.ndarray, *, impl: str = "auto") -> np.ndarray:  # uint8 or uint16 -> [256] or [65536]
    """How often each value occurs."""
    _need_few_values(samples)
    return cpu.count_values(samples) if choose_impl(impl).impl == "cpu" else count_values_ref(samples)


def look_up(samples: np.ndarray, table: np.ndarray, *, impl: str = "auto") -> np.ndarray:  # as samples, table's kind
    """Each sample's entry of a table, which has one for each value that there can be."""
    _need_few_values(samples)
    if table.shape != (num := np.iinfo(samples.dtype).max + 1,):
        raise ShapeError(f"table is {list(table.shape)}", expected=f"[{num}], an entry for each {samples.dtype}")
    return cpu.look_up(samples, table) if choose_impl(impl).impl == "cpu" else look_up_ref(samples, table)


def _need_few_values(samples: np.ndarray) -> None:
    if samples.dtype not in (np.uint8, np.uint16):
        raise ShapeError(f"samples are {samples.dtype}", expected="uint8 or uint16")
