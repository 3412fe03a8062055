"""How busy and how full the card is while a training runs on it."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from hotlap.base.format import format_bytes
from hotlap.device.nvml import Nvml

ASK_EVERY_S = 1.0
"""Between questions to the driver, which takes milliseconds to answer."""


class CardWatch:
    """Readings of one CUDA device; of any other device there are none.

    The driver is asked in a thread of its own: a training of short steps would feel every answer it waits for.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._nvml, self._handle = Nvml(), None
        self._utilisation: float | None = None
        self._asked_at = -ASK_EVERY_S
        self._thread = ThreadPoolExecutor(1, "card-watch")
        self._asked: Future[Any] | None = None
        if device.type == "cuda":
            self._nvml.__enter__()
            self._handle = self._nvml.handle(str(torch.cuda.get_device_properties(device).uuid))

    def read(self) -> dict[str, float]:
        """``peak_bytes`` and, where the driver tells, ``utilisation`` in per cent, as of a second or a row ago."""
        if self._device.type != "cuda":
            return {}
        if self._asked is not None and self._asked.done():
            rates = self._asked.result()
            self._utilisation, self._asked = None if rates is None else float(rates.gpu), None
        if self._handle is not None and self._asked is None and time.monotonic() - self._asked_at >= ASK_EVERY_S:
            self._asked = self._thread.submit(self._nvml.ask, "nvmlDeviceGetUtilizationRates", self._handle)
            self._asked_at = time.monotonic()
        stats = torch.cuda.memory_stats_as_nested_dict(self._device)  # max_memory_allocated() puts all in order first
        found: dict[str, float] = {"peak_bytes": stats["allocated_bytes"]["all"]["peak"]}
        return found if self._utilisation is None else {"utilisation": self._utilisation, **found}

    def close(self) -> None:
        self._thread.shutdown()  # an answer is not waited for longer than the driver takes
        self._nvml.__exit__()


def in_words(reading: dict[str, float]) -> list[str]:
    """``GPU 97%``, ``3.2 GiB``."""
    words = [f"GPU {reading['utilisation']:.0f}%"] if "utilisation" in reading else []
    return words + ([format_bytes(reading["peak_bytes"])] if "peak_bytes" in reading else [])
