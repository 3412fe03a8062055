"""Machines that are not there: a folder for /proc, /sys and /dev, an NVML that answers as told, packages by name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hotlap.tools.doctor.finding import Finding
from hotlap.tools.doctor.machine import Distributions, Machine
from hotlap.tools.doctor.nvml_facts import read_nvml
from hotlap.tools.doctor.registry import load_checks
from hotlap.tools.doctor.run import judge, to_check

UUID = "GPU-00000000-1111-2222-3333-444444444444"
PCI = "0000:41:00.0"
NVRM = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build\nGCC version: 13\n"


class FakePackages(Distributions):
    """Installed distributions as told."""

    def __init__(
        self, versions: dict[str, str], *, cuda: str | None = "13.0", requires: list[str] | None = None
    ) -> None:
        self.versions, self.cuda, self.pins = versions, cuda, requires or []

    def version(self, name: str) -> str:
        return self.versions.get(name, "")

    def requires(self, name: str) -> list[str]:
        return self.pins if name in self.versions else []

    def text(self, name: str, path: str) -> str:
        if name not in self.versions:
            return ""
        build = f"+cu{self.cuda.replace('.', '')}" if self.cuda else "+cpu"
        cuda = repr(self.cuda) if self.cuda else "None"
        return (
            f"__version__ = '{self.versions[name]}{build}'\ncuda: Optional[str] = {cuda}\nhip: Optional[str] = None\n"
        )


class NvmlError(Exception):
    """What pynvml raises."""


class FakeNvml:
    """pynvml with one healthy card, whose answers a test replaces by function name."""

    def __init__(self, driver: str = "580.82.07", init_error: str = "", **answers: Any) -> None:
        self.init_error = init_error
        self.answers: dict[str, Any] = {
            "nvmlSystemGetDriverVersion": driver,
            "nvmlSystemGetCudaDriverVersion_v2": 13000,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetName": "NVIDIA Test 9000",
            "nvmlDeviceGetUUID": UUID,
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId="00000000:41:00.0"),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=24 * 2**30, used=2**30),
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
            "nvmlDeviceGetClockInfo": 1500,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetPowerUsage": 90_000,
            "nvmlDeviceGetPowerManagementLimit": 350_000,
            "nvmlDeviceGetPowerManagementDefaultLimit": 350_000,
            "nvmlDeviceGetTemperature": 45,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=3),
            "nvmlDeviceGetCurrentClocksEventReasons": 0,
            "nvmlDeviceGetComputeRunningProcesses": [],
            "nvmlDeviceGetEccMode": (1, 1),
            "nvmlDeviceGetTotalEccErrors": 0,
            "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
            "nvmlDeviceGetMigMode": (0, 0),
            "nvmlDeviceGetPersistenceMode": 1,
            "nvmlDeviceGetComputeMode": 0,
            "nvmlDeviceGetCurrPcieLinkGeneration": 5,
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            **answers,
        }

    def nvmlInit(self) -> None:
        if self.init_error:
            raise NvmlError(self.init_error)

    def nvmlShutdown(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def answer(*_: Any) -> Any:
            if name not in self.answers:
                raise NvmlError("Not Supported")
            return self.answers[name]

        return answer


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def healthy_root(root: Path, driver: str = "580.82.07") -> Path:
    """A host with one card, whose driver is loaded and whole."""
    write(
        root,
        {
            "proc/driver/nvidia/version": NVRM.format(driver),
            "proc/cpuinfo": "model name : Test CPU\nflags : avx2 avx512f amx_bf16\n",
            "proc/meminfo": "MemTotal:       65536000 kB\n",
            f"usr/lib/x86_64-linux-gnu/libcuda.so.{driver}": "",
            f"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{driver}": "",
            f"sys/bus/pci/devices/{PCI}/vendor": "0x10de\n",
            f"sys/bus/pci/devices/{PCI}/class": "0x030200\n",
            f"sys/bus/pci/devices/{PCI}/device": "0x2335\n",
            f"sys/bus/pci/devices/{PCI}/numa_node": "0\n",
            f"sys/bus/pci/devices/{PCI}/local_cpulist": "0-3\n",
            "dev/nvidia0": "",
            "dev/nvidiactl": "",
            "dev/nvidia-uvm": "",
            "etc/os-release": 'ID=ubuntu\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04"\n',
        },
    )
    (root / "dev/shm").mkdir()
    return root


def fake_machine(root: Path, *, library: Any = None, **changes: Any) -> Machine:
    """A healthy machine under ``root`` with some facts replaced."""
    if not (root / "etc").exists():
        healthy_root(root)
    facts: dict[str, Any] = {
        "root": root,
        "environ": {"PATH": "/usr/bin"},
        "packages": FakePackages({"torch": "2.15.0", "nvidia-ml-py": "13.0", "setuptools": "80.0"}),
        "nvml": read_nvml(library or FakeNvml()),
        "affinity": frozenset({0, 1}),
        "platform": "linux",
    }
    return Machine(**{**facts, **changes})


def examine(machine: Machine, name: str) -> Finding:
    """The finding of one facts check."""
    facts = load_checks()[0][name].facts
    assert facts is not None, f"{name} is a probe"
    return facts(machine)


def exit_code(name: str, finding: Finding) -> int:
    """How the doctor would exit if this were its only finding."""
    return judge([to_check(load_checks()[0][name], finding, 0.0)]).exit_code
