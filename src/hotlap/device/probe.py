"""Which device to use, and the machine in a few lines."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hotlap.base.errors import DeviceUnavailable, UsageError
from hotlap.device.host import read_host
from hotlap.device.nvml import Nvml

if TYPE_CHECKING:
    import torch


def get_device(prefer: str = "auto") -> torch.device:
    """The device asked for, if it is there; ``auto`` takes a GPU that torch can use and otherwise the CPU."""
    import torch

    if prefer == "auto":
        return torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(prefer)
    except RuntimeError as error:
        raise UsageError(f"device = {prefer!r} is not a device", expected="auto, cpu, cuda or cuda:1") from error
    if device.type == "cuda":
        require_cuda(device.index or 0)
    elif device.type != "cpu":
        raise UsageError(f"device = {prefer!r} is not supported", expected="auto, cpu, cuda or cuda:1")
    return device


def require_cuda(index: int = 0) -> None:
    """Raises, with the reason, unless CUDA device ``index`` can be used."""
    import torch

    if not torch.cuda.is_available():
        raise DeviceUnavailable(
            f"a CUDA device was asked for, but {why_no_cuda()}",
            remedy="'hotlap doctor' finds the cause; without a GPU, ask for the cpu (--arms cpu, --device cpu)",
        )
    if index >= torch.cuda.device_count():
        raise DeviceUnavailable(
            f"device cuda:{index} does not exist",
            expected=f"an index below {torch.cuda.device_count()}",
            remedy=f"CUDA_VISIBLE_DEVICES is {os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')!r}",
        )


def why_no_cuda() -> str:
    """The likeliest reason that torch sees no GPU."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if torch.version.cuda is None:
        return "this torch was built without CUDA"
    with Nvml() as nvml:
        if not nvml.available:
            return f"no NVIDIA driver answers ({nvml.reason})"
        cards = nvml.cards()
    if not cards:
        return "the driver answers but lists no card"
    if visible is not None and (visible.strip() == "" or visible.strip().startswith("-1")):
        return f"CUDA_VISIBLE_DEVICES={visible!r} hides all {len(cards)} card(s)"
    return f"torch cannot use the {len(cards)} card(s) the driver lists (CUDA_VISIBLE_DEVICES={visible!r})"


def device_summary() -> str:
    """The machine in a few lines: processor, memory, cards, torch."""
    import torch

    host = read_host()
    lines = [
        f"CPU     {host.cpu_model}, {host.usable_cores} usable cores of {os.cpu_count()}",
        f"Memory  {(host.memory_limit_bytes or host.memory_bytes) / 2**30:.1f} GiB",
    ]
    with Nvml() as nvml:
        driver = nvml.driver_version()
        lines += [f"GPU {c.index}   {c.name}, {c.memory_bytes / 2**30:.1f} GiB, driver {driver}" for c in nvml.cards()]
        if not nvml.cards():
            lines.append(f"GPU     none ({nvml.reason or 'the driver lists no card'})")
    usable = f"uses {torch.cuda.device_count()} GPU(s)" if torch.cuda.is_available() else "uses the CPU only"
    lines.append(f"torch   {torch.__version__}, CUDA {torch.version.cuda or 'none'}, {usable}")
    return "\n".join(lines)
