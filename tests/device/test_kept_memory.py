"""Freed memory that is kept: no fresh pages for the next tensors. Tried in other processes, for it cannot be undone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hotlap.base.errors import UsageError
from hotlap.device import kept_memory
from hotlap.device.kept_memory import can_keep_memory, is_memory_kept

FAULTS = """
import resource, torch
{prepare}
def faults(size):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.empty(size).fill_(1.0)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 10
sizes = (2**24, 2**21)  # floats: one above what the library ever keeps by itself, and one below
for size in 4 * sizes:  # at first there is no room yet that fits
    faults(size)
print(*(faults(size) for size in sizes))
"""
KEEP = "from hotlap.device.kept_memory import keep_memory\nassert keep_memory()"


def run(source):
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


@pytest.mark.skipif(not can_keep_memory(), reason="another C library")
def test_large_tensors_get_no_fresh_pages():
    plain, kept = run(FAULTS.format(prepare="")), run(FAULTS.format(prepare=KEEP))
    pages = 2**24 * 4 / 4096
    if plain[0] < pages / 16:
        pytest.skip("the system hands out huge pages")
    assert plain[0] >= pages, "64 MiB are mapped anew each time"
    assert kept[0] < pages / 2 and kept[1] < pages / 16, "now and then there is no room that fits"


def test_a_library_that_cannot_be_told_is_left_alone(monkeypatch):
    monkeypatch.setattr(kept_memory, "can_keep_memory", lambda: False)
    assert not kept_memory.keep_memory() and not is_memory_kept()
    with pytest.raises(UsageError, match=r"keep_memory is asked for.* Expected glibc.* Leave keep_memory out"):
        kept_memory.require_kept_memory()
