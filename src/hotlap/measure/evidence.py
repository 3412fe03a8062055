"""What one way of running a workload computed, and a folder that remembers it for the next process that judges."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

CPU, CARD = "CPU", "card"
"""What evidence may be computed by."""
MOST_BYTES, MOST_SLOW_BYTES = 2**28, 2**32
"""Larger evidence is kept only where writing it takes less time than it took to compute; and the largest never."""
DISK_BYTES_PER_S = 2e8
"""At least what a disk takes."""
ROOM = 4
"""Times its size that must be free on the disk for it to be kept."""


@dataclass(frozen=True)
class Evidence:
    """Outputs, gradients and losses, in float64 on the CPU."""

    outputs: Tensor
    gradients: dict[str, Tensor]
    losses: list[float]
    step_s: float
    """Its fastest step."""
    where: str = CPU
    """What computed it."""

    @property
    def num_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in (self.outputs, *self.gradients.values()))


def folder_for(kept: str, job: dict[str, Any]) -> Path | None:
    """Where the evidence of a job's workload lies: jobs that differ in nothing but the arms share it."""
    if not kept:
        return None
    asked = {name: job.get(name) for name in ("target", "options", "inputs", "seed", "mode", "batch", "steps")}
    return Path(kept) / hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:16]


class Remembered:
    """Evidence by name, in a folder; without one nothing is remembered, and no failure of the disk is told."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def get(self, name: str, make: Callable[[], Evidence]) -> Evidence:
        """What is remembered under this name, or what ``make`` gives, remembered from now on."""
        known = self._read(name)
        if known is None:
            began = time.perf_counter()
            known = make()
            took = time.perf_counter() - began
            if known.num_bytes <= max(MOST_BYTES, min(MOST_SLOW_BYTES, took * DISK_BYTES_PER_S)):
                self._write(name, known)
        return known

    def forget(self) -> None:
        """Empties the folder."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _read(self, name: str) -> Evidence | None:
        import torch

        if self.folder is None or not (file := self.folder / f"{name}.pt").is_file():
            return None
        try:
            return Evidence(**torch.load(file, weights_only=True))
        except Exception:  # noqa: BLE001 - whatever is wrong with the file, the evidence can be computed
            return None

    def _write(self, name: str, found: Evidence) -> None:
        import torch

        if self.folder is None:
            return
        part = self.folder / f"{name}.part"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(self.folder).free < ROOM * found.num_bytes:
                return
            torch.save(asdict(found), part)
            part.replace(self.folder / f"{name}.pt")
        except (OSError, RuntimeError):
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
