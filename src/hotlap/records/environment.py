"""Where a run happened: enough to say why another machine gives another number."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import hotlap
from hotlap.base.format import format_count
from hotlap.device.host import read_host
from hotlap.device.nvml import Nvml

VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "KMP_AFFINITY", "GOMP_CPU_AFFINITY", "LD_PRELOAD", "LD_LIBRARY_PATH",
    "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "NVIDIA_TF32_OVERRIDE", "TORCH_LOGS", "TORCHINDUCTOR_CACHE_DIR",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One card, as the driver names it."""

    name: str
    uuid: str
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Machine, software and commit of a run."""

    hostname: str
    system: str
    python: str
    hotlap: str
    commit: str
    """Of the repository hotlap or the user's work lies in; '+' after it means uncommitted changes; '' if none."""
    cpu_model: str
    usable_cores: int
    logical_cpus: int
    memory_bytes: int
    driver: str
    gpus: list[Gpu] = field(default_factory=list)
    packages: dict[str, str] = field(default_factory=dict)
    cuda: str = ""
    """The CUDA that torch was built with."""
    cudnn: str = ""
    variables: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def this_hostname() -> str:
        return socket.gethostname()

    def device_line(self) -> str:
        """The machine in one line."""
        host = f"{self.cpu_model}, {format_count(self.usable_cores, 'core')}"
        return host + "".join(f" + {gpu.name}" for gpu in self.gpus)


def capture(*, import_torch: bool = True, ask_driver: bool = True) -> Environment:
    """This machine, now. Opens no CUDA context.

    Without ``import_torch`` a broken torch, and without ``ask_driver`` a driver that hangs, cannot do harm either.
    """
    host = read_host()
    driver, gpus = _driver_and_gpus() if ask_driver else ("", [])
    cuda, cudnn = _torch_libraries() if import_torch else ("", "")
    return Environment(
        hostname=Environment.this_hostname(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        hotlap=hotlap.__version__,
        commit=read_commit(Path.cwd()),
        cpu_model=host.cpu_model,
        usable_cores=host.usable_cores,
        logical_cpus=host.logical_cpus,
        memory_bytes=host.memory_bytes,
        driver=driver,
        gpus=gpus,
        packages=versions_of("torch", "triton", "numpy", "scipy", "torchvision", "timm", "nvidia-ml-py", "psutil"),
        cuda=cuda,
        cudnn=cudnn,
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
    )


def _driver_and_gpus() -> tuple[str, list[Gpu]]:
    with Nvml() as nvml:
        cards = nvml.cards()
        return nvml.driver_version(), [Gpu(name=c.name, uuid=c.uuid, memory_bytes=c.memory_bytes) for c in cards]


def versions_of(*names: str) -> dict[str, str]:
    """The versions of those packages that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _torch_libraries() -> tuple[str, str]:
    try:
        import torch
    except ImportError:
        return "", ""
    cudnn = torch.backends.cudnn.version() if torch.version.cuda else None
    return torch.version.cuda or "", str(cudnn or "")


def read_commit(folder: Path) -> str:
    """The git commit of ``folder``, with '+' when files differ from it; '' outside a repository or without git."""
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        dirty = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return ""
    return commit + ("+" if dirty else "")


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()
