"""Probes of the host that need no torch, in their own process because a dead network mount would hang them."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from hotlap.tools.doctor.finding import Finding, Fix, failed, passed, warned
from hotlap.tools.doctor.machine import gib
from hotlap.tools.doctor.registry import probe

_WRITE_BYTES = 32 * 2**20


@probe("disk", group="host", why="A full or slow disk loses checkpoints and starves the loader.", alone=True)
def disk() -> Finding:
    """Free space in the current folder, and how fast a small file reaches the disk."""
    folder = Path.cwd()
    usage = shutil.disk_usage(folder)
    if not os.access(folder, os.W_OK):
        return warned(f"{folder} is not writable", Fix(say="Work in a folder you may write to, or give --runs one"))
    speed = write_speed(folder) if usage.free > 4 * _WRITE_BYTES else 0.0
    return judge_disk(str(folder), usage.free, usage.total, speed)


def write_speed(folder: Path) -> float:
    """MB/s of one small file written and flushed to the disk, then removed."""
    block = os.urandom(2**20)  # random, because some disks make short work of zeros
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".hotlap-disk-") as file:
        begin = time.perf_counter()
        for _ in range(_WRITE_BYTES // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return _WRITE_BYTES / 1e6 / (time.perf_counter() - begin)


def judge_disk(folder: str, free: int, total: int, mb_per_s: float) -> Finding:
    """Space and speed in one finding."""
    facts = f"{folder}: {gib(free)} free of {gib(total)}, {mb_per_s:.0f} MB/s for a flushed 32 MiB file"
    look = ("df -h .", "du -xh . --max-depth=2 | sort -h | tail")
    if free < 512 * 2**20:
        return failed(facts, Fix(say="Free some space; records cannot be written", commands=look))
    if free < 10 * 2**30:
        return warned(facts, Fix(say="Free some space before training", commands=look))
    if mb_per_s < 50:
        return warned(facts, Fix(say="Keep data and checkpoints on a local disk; give --runs a folder there"))
    return passed(facts, free_bytes=free, write_mb_per_s=mb_per_s)
