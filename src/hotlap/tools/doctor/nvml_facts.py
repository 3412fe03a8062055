"""What NVML says about the driver and every card, as plain data that can cross a process border."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotlap.device.nvml import Nvml


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """A process that holds memory on a card."""

    pid: int
    name: str = ""
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """One card; None where the driver does not say."""

    index: int
    name: str
    uuid: str
    pci_bus: str = ""
    memory_bytes: int = 0
    memory_used_bytes: int | None = None
    capability: str = ""
    """Compute capability as in 9.0."""
    sm_clock_mhz: float | None = None
    max_sm_clock_mhz: float | None = None
    app_clock_mhz: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    temperature_c: float | None = None
    utilisation: float | None = None
    throttle: list[str] = field(default_factory=list)
    ecc: bool | None = None
    ecc_uncorrected: int | None = None
    """Uncorrected memory errors since the driver was loaded."""
    remap_pending: bool = False
    remap_failed: bool = False
    mig: bool | None = None
    mig_instances: int = 0
    persistence: bool | None = None
    compute_mode: int | None = None
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    tenants: list[Tenant] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class NvmlFacts:
    """The driver as NVML sees it; ``reason`` says why nothing is known."""

    driver: str = ""
    cuda: str = ""
    """The newest CUDA the driver supports, as in 13.0."""
    reason: str = ""
    cards: list[CardFacts] = field(default_factory=list)


def read_nvml(library: Any = None) -> NvmlFacts:
    """Everything the checks need, from ``library`` or the installed pynvml. Reads only; sets nothing."""
    with Nvml(library) as nvml:
        if not nvml.available:
            return NvmlFacts(reason=nvml.reason or "NVML is not available")
        number = nvml.ask("nvmlSystemGetCudaDriverVersion_v2") or nvml.ask("nvmlSystemGetCudaDriverVersion") or 0
        return NvmlFacts(
            driver=nvml.driver_version(),
            cuda=f"{number // 1000}.{number % 1000 // 10}" if number else "",
            cards=[_card(nvml, index) for index in range(nvml.ask("nvmlDeviceGetCount") or 0)],
        )


def _card(nvml: Nvml, index: int) -> CardFacts:
    handle = nvml.ask("nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return CardFacts(index=index, name="unreachable card", uuid="")
    state = nvml.state(handle)
    assert state is not None, "state() answers for every handle of an open session"
    memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
    capability = nvml.ask("nvmlDeviceGetCudaComputeCapability", handle)
    pci = nvml.ask("nvmlDeviceGetPciInfo", handle)
    return CardFacts(
        index=index,
        name=_text(nvml.ask("nvmlDeviceGetName", handle)),
        uuid=_text(nvml.ask("nvmlDeviceGetUUID", handle)),
        pci_bus=_text(getattr(pci, "busId", "")),
        memory_bytes=int(memory.total) if memory else 0,
        memory_used_bytes=state.memory_used_bytes,
        capability=f"{capability[0]}.{capability[1]}" if capability else "",
        sm_clock_mhz=state.sm_clock_mhz,
        max_sm_clock_mhz=state.max_sm_clock_mhz,
        power_w=state.power_w,
        temperature_c=state.temperature_c,
        utilisation=state.utilisation,
        throttle=state.throttle,
        tenants=_tenants(nvml, handle),
        **_health(nvml, handle),
        **_limits(nvml, handle),
    )


def _health(nvml: Nvml, handle: Any) -> dict[str, Any]:
    ecc = nvml.ask("nvmlDeviceGetEccMode", handle)
    mig = nvml.ask("nvmlDeviceGetMigMode", handle)
    remapped = nvml.ask("nvmlDeviceGetRemappedRows", handle)
    persistence = nvml.ask("nvmlDeviceGetPersistenceMode", handle)
    instances = range(nvml.ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0) if mig and mig[0] else range(0)
    held = [i for i in instances if nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, i) is not None]
    return {
        "ecc": None if ecc is None else bool(ecc[0]),
        # 1 is NVML_MEMORY_ERROR_TYPE_UNCORRECTED, 0 NVML_VOLATILE_ECC: errors since the driver was loaded.
        "ecc_uncorrected": nvml.ask("nvmlDeviceGetTotalEccErrors", handle, 1, 0) if ecc and ecc[0] else None,
        "remap_pending": bool(remapped and remapped[2]),
        "remap_failed": bool(remapped and remapped[3]),
        "mig": None if mig is None else bool(mig[0]),
        "mig_instances": len(held),
        "persistence": None if persistence is None else bool(persistence),
        "compute_mode": nvml.ask("nvmlDeviceGetComputeMode", handle),
    }


def _limits(nvml: Nvml, handle: Any) -> dict[str, Any]:
    limit = nvml.ask("nvmlDeviceGetPowerManagementLimit", handle)
    default = nvml.ask("nvmlDeviceGetPowerManagementDefaultLimit", handle)
    app_clock = nvml.ask("nvmlDeviceGetApplicationsClock", handle, 1)
    return {
        "power_limit_w": None if limit is None else limit / 1000,
        "power_default_w": None if default is None else default / 1000,
        "app_clock_mhz": None if app_clock is None else float(app_clock),
        "pcie_gen": nvml.ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        "pcie_gen_max": nvml.ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "pcie_width": nvml.ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
        "pcie_width_max": nvml.ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
    }


def _tenants(nvml: Nvml, handle: Any) -> list[Tenant]:
    found = []
    for process in nvml.ask("nvmlDeviceGetComputeRunningProcesses", handle) or []:
        name = ""
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{process.pid}/comm").read_text(encoding="utf-8").strip()
        used = getattr(process, "usedGpuMemory", None)
        found.append(Tenant(pid=int(process.pid), name=name, memory_bytes=None if used is None else int(used)))
    return found


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")
