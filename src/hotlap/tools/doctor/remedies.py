"""What known error messages mean, and what puts them right."""

from __future__ import annotations

import re

from hotlap.tools.doctor.finding import Fix

_REINSTALL = ("pip install --force-reinstall torch",)
_KNOWN: tuple[tuple[str, Fix], ...] = (
    (
        r"No module named '?torch'?",
        Fix(commands=("pip install torch",)),
    ),
    (
        r"no kernel image|not compatible with the current PyTorch",
        Fix(
            say="This torch has no code for this card; install the build that fits it",
            commands=("pip install uv", "uv pip install --torch-backend=auto --reinstall-package torch torch"),
        ),
    ),
    (
        r"driver version is insufficient|driver on your system is too old",
        Fix(say="See driver-cuda: the driver is older than torch's CUDA needs"),
    ),
    (r"[Nn]o NVIDIA driver|no CUDA-capable device", Fix(say="See kernel-module, device-files and visible-devices")),
    (
        r"unknown error|[Ee]rror 999",
        Fix(
            say="Reload the unified-memory module, as is needed after a suspend",
            commands=("sudo rmmod nvidia_uvm", "sudo modprobe nvidia_uvm"),
            on_host=True,
        ),
    ),
    (
        r"[Dd]river/library version mismatch|system has unsupported display driver",
        Fix(say="See driver-match", commands=("sudo reboot",), on_host=True),
    ),
    (
        r"out of memory|STATUS_ALLOC_FAILED",
        Fix(say="Free memory on the card; see who holds it", commands=("nvidia-smi",)),
    ),
    (
        r"cannot open shared object file|undefined symbol|version `?\w+'? not found",
        Fix(
            say="A library that torch needs is missing or of another version; install torch again", commands=_REINSTALL
        ),
    ),
    (
        r"CUDNN_STATUS_NOT_INITIALIZED|CUDNN_STATUS_SUBLIBRARY|cuDNN version incompatibility",
        Fix(
            say="Another cuDNN is loaded, or the card has no memory left; see library-path, then install torch again",
            commands=("unset LD_LIBRARY_PATH", *_REINSTALL),
        ),
    ),
    (r"Python\.h", Fix(commands=("sudo apt-get install -y python3-dev",))),
    (
        r"InvalidCxxCompiler|No working C\+\+ compiler|Failed to find C compiler|gcc: not found",
        Fix(commands=("sudo apt-get install -y g++",)),
    ),
    (r"[Cc]annot find a working triton|No module named '?triton'?", Fix(commands=("pip install --upgrade triton",))),
    (r"No space left on device", Fix(say="Free some space", commands=("df -h",))),
    (r"ECC|Xid", Fix(say="See ecc", commands=("sudo dmesg | grep -i xid",), on_host=True)),
)


def remedy(message: str, probe: str) -> Fix:
    """The fix for a message; for an unknown one, the command that shows it whole."""
    for pattern, fix in _KNOWN:
        if re.search(pattern, message):
            return fix
    return Fix(say="Run the probe alone to see the whole error", commands=(alone_command(probe),))


def alone_command(probe: str) -> str:
    return f"python -m hotlap.tools.doctor.probe {probe} --verbose"
