"""Measured ceilings of one device, cached so that a roofline need not measure them again."""

from __future__ import annotations

import json
import os
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hotlap.base.errors import RecordError
from hotlap.base.homes import cache_home
from hotlap.records.codec import decode, encode
from hotlap.records.run import write_atomic

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """One rate the device reached; ``values`` holds every repeat in the order it was taken."""

    quantity: str
    """copy, matmul, h2d_pageable, h2d_pinned, d2h_pageable or d2h_pinned."""
    unit: str
    """GB/s (1e9 bytes) or TFLOP/s (1e12 multiplications and additions)."""
    values: list[float]
    dtype: str = ""
    """fp64, fp32, tf32, bf16 or fp16 for matmul; '' otherwise."""
    detail: str = ""
    """Size of the work, as in '8192 x 8192 x 8192'."""

    @property
    def median(self) -> float:
        return statistics.median(self.values)


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """What one device reached with one torch."""

    schema_version: int = SCHEMA_VERSION
    kind: str
    """cpu or cuda."""
    device: str
    """The device's name for people."""
    key: str
    """What the cache file is named after; see :func:`device_key`."""
    torch: str
    measured_at: str
    ceilings: list[Ceiling]
    flags: list[str] = field(default_factory=list)
    """What a reader must know: 'slowed by the software power cap', ..."""

    def find(self, quantity: str, dtype: str = "") -> Ceiling | None:
        """The ceiling of one quantity, or None when it was not measured."""
        return next((c for c in self.ceilings if (c.quantity, c.dtype) == (quantity, dtype)), None)


def device_key(identity: str, torch: str) -> str:
    """A file name from a card's UUID or a processor's model and core count, and torch's version."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", f"{identity}_torch-{torch}").strip("-")


def ceilings_folder(environ: Mapping[str, str] = os.environ) -> Path:
    return cache_home(environ) / "hotlap" / "ceilings"


def write_ceilings(ceilings: Ceilings, folder: Path | None = None) -> Path:
    """The cache file, written whole or not at all."""
    folder = folder or ceilings_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{ceilings.key}.json"
    write_atomic(path, json.dumps(encode(ceilings), indent=1) + "\n")
    return path


def read_ceilings(key: str, folder: Path | None = None) -> Ceilings | None:
    """The cached ceilings of a device, or None when none were measured; a broken file is an error that names it."""
    path = (folder or ceilings_folder()) / f"{key}.json"
    if not path.is_file():
        return None
    try:
        ceilings: Ceilings = decode(Ceilings, json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, OSError) as error:
        raise RecordError(
            f"ceilings file {str(path)!r} cannot be read: {error}",
            remedy="Delete it and run 'hotlap doctor --measure'",
        ) from error
    if ceilings.schema_version != SCHEMA_VERSION:
        raise RecordError(
            f"ceilings file {str(path)!r} has schema_version = {ceilings.schema_version!r}",
            expected=f"schema_version = {SCHEMA_VERSION}",
            remedy="Delete it and run 'hotlap doctor --measure'",
        )
    return ceilings
