"""How many workers a training needs, seen in its own first steps: batches are the same however many there are."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import torch

from hotlap.base.format import format_count, format_ms
from hotlap.engine.loader import Loaded
from hotlap.engine.loader_choice import HEADROOM, IN_PROCESS_SHARE, WORKER_BYTES, Limits, read_limits, refusal
from hotlap.engine.loader_settings import LoaderSettings
from hotlap.engine.loader_speed import batch_bytes

FIRST, STEPS = 2, 8
"""The first steps, which warm up, are not looked at; then so many are."""
CPU_SHARE = 4
"""A model on the CPU needs its cores itself: at most one in so many goes to a worker."""


def workers_needed(load_s: float, step_s: float, limits: Limits, *, on_cpu: bool) -> int:
    """The fewest workers that keep up with a step, where loading a batch takes ``load_s`` in one process."""
    if load_s <= IN_PROCESS_SHARE * step_s:
        return 0
    most = limits.cpus // CPU_SHARE if on_cpu else limits.cpus
    return min(math.ceil(HEADROOM * load_s / max(step_s, 1e-9)), most)


class Settling:
    """Looks on while a training loads in its own process, and says which settings it should go on with."""

    def __init__(self, device: torch.device, prefetch: int) -> None:
        self._device, self._prefetch = device, max(1, prefetch)
        self._load_s: list[float] = []
        self._step_s: list[float] = []
        self._batch_bytes = 0

    def watched(self, batches: Iterator[Loaded]) -> Iterator[Loaded]:
        """The same batches; how long each took to come, and how long the caller then took, is noted."""
        while True:
            begin = time.perf_counter()
            loaded = next(batches, None)
            if loaded is None:
                return
            came = time.perf_counter()
            self._batch_bytes = max(self._batch_bytes, batch_bytes(loaded.batch))
            yield loaded
            if self._device.type == "cuda" and not self.is_over:
                torch.cuda.synchronize(self._device)
            self._load_s.append(came - begin)
            self._step_s.append(time.perf_counter() - came)

    @property
    def is_over(self) -> bool:
        return len(self._load_s) >= FIRST + STEPS

    def settings(self) -> tuple[LoaderSettings, str]:
        """What to go on with, and why in words."""
        load_s, step_s = (sorted(times[FIRST:])[STEPS // 2] for times in (self._load_s, self._step_s))
        limits, on_cpu = read_limits(), self._device.type != "cuda"
        num, refused = workers_needed(load_s, step_s, limits, on_cpu=on_cpu), ""
        settings = self._with(num)
        while num and (why := refusal(settings, limits, batch_bytes=self._batch_bytes, worker_bytes=WORKER_BYTES)):
            num, refused = num - 1, f"; more were refused: {why}"
            settings = self._with(num)
        facts = f"loading a batch takes {format_ms(1e3 * load_s)} beside a step of {format_ms(1e3 * step_s)}"
        return settings, f"{facts}: {format_count(num, 'worker')} from now on{refused}"

    def _with(self, workers: int) -> LoaderSettings:
        return LoaderSettings(
            num_workers=workers,
            prefetch_factor=self._prefetch if workers else None,
            pin_memory=self._device.type == "cuda",
            persistent_workers=workers > 0,
        )
