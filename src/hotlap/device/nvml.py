"""NVIDIA's management library, read only: what the cards are, and how they are doing right now.

Cards are matched with CUDA's by UUID, because the two count in different orders.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# NVML's clock-event reasons that mean "slower than it could be"; idling and user-set clocks are listed apart.
SLOWING = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


@dataclass(frozen=True, kw_only=True)
class Card:
    """One GPU as the driver sees it."""

    index: int
    name: str
    uuid: str
    memory_bytes: int
    pci_bus: str = ""


@dataclass(frozen=True, kw_only=True)
class CardState:
    """One reading of a GPU; None where the driver does not say."""

    sm_clock_mhz: float | None
    max_sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    utilisation: float | None
    memory_used_bytes: int | None
    throttle: list[str]
    processes: list[int]
    energy_mj: float | None
    """Millijoules since the driver was loaded."""


class Nvml:
    """An open session with NVML; use as a context manager. ``reason`` says why it is not available."""

    def __init__(self, library: Any = None) -> None:
        self.library = library
        self.reason = ""

    def __enter__(self) -> Nvml:
        if self.library is None:
            try:
                import pynvml
            except ImportError:
                self.reason = "the package nvidia-ml-py is not installed"
                return self
            self.library = pynvml
        try:
            self.library.nvmlInit()
        except Exception as error:  # noqa: BLE001 - NVML raises many types; each means "no driver to talk to"
            self.reason = str(error)
            self.library = None
        return self

    def __exit__(self, *_: object) -> None:
        if self.library is not None:
            with contextlib.suppress(Exception):
                self.library.nvmlShutdown()

    @property
    def available(self) -> bool:
        return self.library is not None

    def ask(self, function: str, *arguments: Any) -> Any:
        """The answer of one NVML call, or None where the card or driver does not support it."""
        call: Callable[..., Any] | None = getattr(self.library, function, None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except Exception:  # noqa: BLE001 - "not supported" comes in as many types as there are drivers
            return None

    def driver_version(self) -> str:
        return _text(self.ask("nvmlSystemGetDriverVersion")) if self.available else ""

    def cards(self) -> list[Card]:
        """Every card of the machine, visible to CUDA or not."""
        if not self.available:
            return []
        found = []
        for index in range(self.ask("nvmlDeviceGetCount") or 0):
            handle = self.ask("nvmlDeviceGetHandleByIndex", index)
            if handle is None:
                continue
            memory = self.ask("nvmlDeviceGetMemoryInfo", handle)
            pci = self.ask("nvmlDeviceGetPciInfo", handle)
            found.append(
                Card(
                    index=index,
                    name=_text(self.ask("nvmlDeviceGetName", handle)),
                    uuid=_text(self.ask("nvmlDeviceGetUUID", handle)),
                    memory_bytes=int(memory.total) if memory else 0,
                    pci_bus=_text(getattr(pci, "busId", "")) if pci else "",
                )
            )
        return found

    def handle(self, uuid: str) -> Any:
        """The handle of the card with this UUID, or None."""
        if not self.available:
            return None
        wanted = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        for index in range(self.ask("nvmlDeviceGetCount") or 0):
            handle = self.ask("nvmlDeviceGetHandleByIndex", index)
            if handle is not None and _text(self.ask("nvmlDeviceGetUUID", handle)) == wanted:
                return handle
        return None

    def state(self, handle: Any) -> CardState | None:
        """How the card is doing now."""
        if not self.available or handle is None:
            return None
        power = self.ask("nvmlDeviceGetPowerUsage", handle)
        memory = self.ask("nvmlDeviceGetMemoryInfo", handle)
        rates = self.ask("nvmlDeviceGetUtilizationRates", handle)
        bits = self.ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if bits is None:
            bits = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
        processes = self.ask("nvmlDeviceGetComputeRunningProcesses", handle) or []
        return CardState(
            sm_clock_mhz=_number(self.ask("nvmlDeviceGetClockInfo", handle, 1)),
            max_sm_clock_mhz=_number(self.ask("nvmlDeviceGetMaxClockInfo", handle, 1)),
            memory_clock_mhz=_number(self.ask("nvmlDeviceGetClockInfo", handle, 2)),
            power_w=None if power is None else float(power) / 1000,
            temperature_c=_number(self.ask("nvmlDeviceGetTemperature", handle, 0)),
            utilisation=None if rates is None else float(rates.gpu),
            memory_used_bytes=None if memory is None else int(memory.used),
            throttle=[word for bit, word in SLOWING.items() if bits & bit],
            processes=sorted(int(p.pid) for p in processes),
            energy_mj=_number(self.ask("nvmlDeviceGetTotalEnergyConsumption", handle)),
        )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")
