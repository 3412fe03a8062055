"""The facts the doctor judges, gathered behind one object so that a test can stand in for any machine."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path

from hotlap.base.bytecode import torch_folder
from hotlap.device.host import Host, read_host
from hotlap.tools.doctor.nvml_facts import NvmlFacts

DRIVER_FOLDERS = (
    "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "lib/x86_64-linux-gnu",
    "usr/local/nvidia/lib64", "usr/local/nvidia/lib", "usr/lib/wsl/lib", "run/nvidia/driver/usr/lib/x86_64-linux-gnu",
)  # fmt: skip
_PCI_DISPLAY = ("0x0300", "0x0302")


class Distributions:
    """The installed Python distributions, read from their metadata and files without importing them."""

    def version(self, name: str) -> str:
        """The installed version, or '' when the distribution is not installed."""
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return ""

    def requires(self, name: str) -> list[str]:
        """The requirement lines of a distribution; none when it is not installed."""
        try:
            return metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            return []

    def text(self, name: str, path: str) -> str:
        """One file of a distribution, or '' when there is none."""
        try:
            file = Path(str(metadata.distribution(name).locate_file(path)))
            return file.read_text(encoding="utf-8", errors="replace")
        except (metadata.PackageNotFoundError, OSError):
            return ""


def open_device(path: Path) -> None:
    """Opens and closes a device file, as the driver's libraries would; raises ``OSError`` where they would fail."""
    os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))


def _affinity() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One machine as seen through files, environment variables, package metadata and NVML."""

    root: Path = Path("/")
    """Where /proc, /sys and /dev are looked for."""
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    packages: Distributions = field(default_factory=Distributions)
    nvml: NvmlFacts = field(default_factory=NvmlFacts)
    """What the driver's management library said, read in a process of its own because a sick driver can hang it."""
    affinity: frozenset[int] = field(default_factory=_affinity)
    open_device: Callable[[Path], None] = open_device
    torch_folder: Path | None = field(default_factory=torch_folder)
    platform: str = sys.platform

    @cached_property
    def host(self) -> Host:
        return read_host(self.root)

    def read(self, path: str) -> str:
        """A file under the root, stripped, or '' when it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    @cached_property
    def os_release(self) -> dict[str, str]:
        """The distribution's name card: ID, VERSION_ID, PRETTY_NAME and so on."""
        lines = (line.partition("=") for line in self.read("etc/os-release").splitlines())
        return {key: value.strip('"') for key, _, value in lines if key}

    @cached_property
    def container(self) -> str:
        """docker, podman, kubernetes, lxc or another word for what this process is kept in; '' on a plain host."""
        if self.environ.get("KUBERNETES_SERVICE_HOST"):
            return "kubernetes"
        if self.exists("run/.containerenv"):
            return "podman"
        if self.exists(".dockerenv"):
            return "docker"
        if self.environ.get("APPTAINER_CONTAINER") or self.environ.get("SINGULARITY_CONTAINER"):
            return "apptainer"
        named = self.environ.get("container", "")
        if named:
            return named
        words = re.search(r"kubepods|docker|containerd|libpod|lxc", self.read("proc/1/cgroup"))
        return words.group(0) if words else ""

    @cached_property
    def pci_cards(self) -> dict[str, str]:
        """NVIDIA display and compute devices on the PCI bus: address to device id."""
        found = {}
        folder = self.root / "sys/bus/pci/devices"
        for device in sorted(folder.iterdir()) if folder.is_dir() else []:
            inner = f"sys/bus/pci/devices/{device.name}"
            is_card = self.read(f"{inner}/class").startswith(_PCI_DISPLAY)
            if self.read(f"{inner}/vendor") == "0x10de" and is_card:
                found[device.name] = self.read(f"{inner}/device")
        return found

    @cached_property
    def device_files(self) -> list[str]:
        """Names under /dev that start with nvidia."""
        folder = self.root / "dev"
        return sorted(p.name for p in folder.glob("nvidia*")) if folder.is_dir() else []

    @cached_property
    def has_nvidia(self) -> bool:
        """Whether any trace of an NVIDIA card is here: on the bus, in /dev, in the kernel, or answered by NVML."""
        if self.card_not_given:
            return False
        return bool(self.pci_cards or self.device_files or self.module_version or self.nvml.cards or self.is_wsl_gpu)

    @cached_property
    def card_not_given(self) -> bool:
        """Whether the host has a card that this container neither asked for nor got: /sys and /proc show it anyway."""
        asked = self.environ.get("NVIDIA_VISIBLE_DEVICES", "") not in ("", "none", "void")
        reached = bool(self.device_files or self.nvml.cards or self.is_wsl_gpu)
        return bool(self.container and (self.pci_cards or self.module_version) and not asked and not reached)

    @cached_property
    def is_wsl_gpu(self) -> bool:
        """Whether the card is reached through Windows' driver: no kernel module and no /dev/nvidia* there."""
        return self.exists("dev/dxg") and self.exists("usr/lib/wsl/lib/libcuda.so.1")

    @cached_property
    def module_version(self) -> str:
        """The version of the kernel module that is loaded now; '' when none is."""
        line = self.read("proc/driver/nvidia/version").partition("\n")[0]
        found = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", line)
        return found.group(1) if found else self.read("sys/module/nvidia/version")

    @cached_property
    def driver_version(self) -> str:
        """The driver's version from whichever source answers: NVML, else the kernel module."""
        return self.nvml.driver or self.module_version

    @cached_property
    def driver_libraries(self) -> dict[str, str]:
        """Versions of the driver's user-space libraries: path to version, in the order the loader looks."""
        folders = [f for f in self.environ.get("LD_LIBRARY_PATH", "").split(":") if f.startswith("/")]
        # CUDA's compat folder holds a libcuda newer than the module on purpose.
        folders = [f.rstrip("/") for f in folders if "compat" not in f]
        found = {}
        for folder in [*(f.lstrip("/") for f in folders), *DRIVER_FOLDERS]:
            where = self.root / folder
            for name in ("libcuda.so", "libnvidia-ml.so"):
                for path in sorted(where.glob(f"{name}.*.*")) if where.is_dir() else []:
                    if not path.is_symlink():
                        found[f"/{folder}/{path.name}"] = path.name.removeprefix(f"{name}.")
        return found

    @cached_property
    def torch_version(self) -> str:
        """The installed torch with its build, as in 2.15.0+cu132; '' when it is not installed."""
        stated = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", self._torch_text)
        return stated.group(1) if stated else self.packages.version("torch")

    @cached_property
    def torch_cuda(self) -> str:
        """The CUDA that torch was built with; '' for a build without."""
        stated = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", self._torch_text, re.MULTILINE)
        return stated.group(1) if stated else ""

    @cached_property
    def torch_hip(self) -> str:
        """The ROCm that torch was built with; '' for a build without."""
        stated = re.search(r"^hip\b[^=\n]*=\s*['\"]([\w.\-]+)['\"]", self._torch_text, re.MULTILINE)
        return stated.group(1) if stated else ""

    @cached_property
    def _torch_text(self) -> str:
        return self.packages.text("torch", "torch/version.py")


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers, for comparing: '580.82.07+x' gives (580, 82, 7)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:4])


def gib(count: float) -> str:
    """Bytes in words a person reads."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
