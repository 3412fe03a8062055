"""How busy and how full the card is while a training runs on it."""

from __future__ import annotations

import time

import torch

from hotlap.base.format import format_bytes
from hotlap.device.nvml import Nvml

ASK_EVERY_S = 1.0
"""The driver takes milliseconds to answer, which a training of short steps would feel at every row of metrics."""


class CardWatch:
    """Readings of one CUDA device; of any other device there are none."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._nvml, self._handle = Nvml(), None
        self._utilisation: float | None = None
        self._asked_at = -ASK_EVERY_S
        if device.type == "cuda":
            self._nvml.__enter__()
            self._handle = self._nvml.handle(str(torch.cuda.get_device_properties(device).uuid))

    def read(self) -> dict[str, float]:
        """``peak_bytes`` and, where the driver tells, ``utilisation`` in per cent, which may be a second old."""
        if self._device.type != "cuda":
            return {}
        found: dict[str, float] = {"peak_bytes": torch.cuda.max_memory_allocated(self._device)}
        if self._handle is not None and time.monotonic() - self._asked_at >= ASK_EVERY_S:
            rates = self._nvml.ask("nvmlDeviceGetUtilizationRates", self._handle)
            self._utilisation = None if rates is None else float(rates.gpu)
            self._asked_at = time.monotonic()
        return found if self._utilisation is None else {"utilisation": self._utilisation, **found}

    def close(self) -> None:
        self._nvml.__exit__()


def in_words(reading: dict[str, float]) -> list[str]:
    """``GPU 97%``, ``3.2 GiB``."""
    words = [f"GPU {reading['utilisation']:.0f}%"] if "utilisation" in reading else []
    return words + ([format_bytes(reading["peak_bytes"])] if "peak_bytes" in reading else [])
