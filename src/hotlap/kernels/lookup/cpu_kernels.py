"""Counting and looking up, compiled by numba; other threads run on meanwhile."""

from __future__ import annotations

from numba import njit


@njit(cache=True, nogil=True)
def count_kernel(samples, counts):
    """Adds to each value's count."""
    for n in range(samples.size):
        counts[samples[n]] += 1


@njit(cache=True, nogil=True)
def look_up_kernel(samples, table, found):
    """Writes each sample's entry."""
    for n in range(samples.size):
        found[n] = table[samples[n]]
