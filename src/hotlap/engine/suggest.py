"""Settings to begin with, each with its reason: micro-batch, precision, layout and loader processes."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from hotlap.base.errors import OutOfMemory, UsageError
from hotlap.base.format import format_bytes
from hotlap.device.host import Host, read_host
from hotlap.device.layout import has_convolutions
from hotlap.device.memory import free_bytes
from hotlap.device.probe import get_device
from hotlap.engine.estimate import MemoryEstimate, estimate_memory
from hotlap.engine.imitate import Imitation
from hotlap.workload import Workload

SHARE = 0.85
"""Of the free memory; the rest is for what an estimate leaves out."""
MOST = 65536
"""No batch above this is suggested, however small the model."""
MOST_WORKERS = 8


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """Where to begin. The batch was estimated, not run; ``hotlap tune`` measures."""

    target: str
    device: str
    estimated_batch: int
    """The largest micro-batch whose estimate fits; never tried."""
    tested: bool = False
    """Always false: nothing was run."""
    precision: str
    channels_last: bool
    workers: int
    """Loader processes."""
    free_bytes: int
    """Of the device, or what was given as vram_bytes."""
    budget_bytes: int
    """The share of it that the estimate may fill."""
    memory: MemoryEstimate
    """At the suggested batch."""
    reasons: dict[str, str] = field(default_factory=dict)
    """By the name of the setting."""

    def __str__(self) -> str:
        rows = {
            "estimated_batch": self.estimated_batch,
            "precision": self.precision,
            "channels_last": "yes" if self.channels_last else "no",
            "workers": self.workers,
        }
        lines = [f"{self.target} on {self.device}: an estimate, not tested; 'hotlap tune' measures"]
        lines += [f"  {name:<16}{value!s:<11}{self.reasons.get(name, '')}" for name, value in rows.items()]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.memory.notes)])


def suggest_for(
    workload: Workload,
    *,
    device: str = "auto",
    batch: int | None = None,
    precision: str | None = None,
    vram_bytes: int | None = None,
) -> Suggestion:
    """Settings to begin with on ``device``, or on a card with ``vram_bytes`` of free memory that need not be here.

    ``batch`` is the most that is wanted, as an effective batch is; ``precision`` fixes what would be chosen.
    """
    _check(device, batch, vram_bytes)
    host = read_host()
    place = torch.device("cuda") if vram_bytes is not None else get_device(device)
    free = vram_bytes if vram_bytes is not None else free_bytes(place)
    kind, why_precision = _precision(place, host, planned=vram_bytes is not None)
    if precision is not None:
        kind, why_precision = precision, "as asked"
    budget = int(SHARE * free)
    memory, why_batch = _largest(workload, place.type, kind, budget, free, batch)
    layout, why_layout = _layout(workload)
    workers, why_workers = _workers(host, place.type)
    reasons = {"estimated_batch": why_batch, "precision": why_precision}
    return Suggestion(
        target=workload.name,
        device=_device_name(place, vram_bytes),
        estimated_batch=memory.batch,
        precision=kind,
        channels_last=layout,
        workers=workers,
        free_bytes=free,
        budget_bytes=budget,
        memory=memory,
        reasons={**reasons, "channels_last": why_layout, "workers": why_workers},
    )


def _check(device: str, batch: int | None, vram_bytes: int | None) -> None:
    for name, value in {"batch": batch, "vram_bytes": vram_bytes}.items():
        if value is not None and value < 1:
            raise UsageError(f"{name} = {value} is not valid", expected="a whole number from 1")
    if vram_bytes is not None and device not in ("auto", "cuda"):
        raise UsageError(f"vram_bytes = {vram_bytes} with device = {device!r}", expected="device auto or cuda with it")


def _device_name(place: torch.device, vram_bytes: int | None) -> str:
    if vram_bytes is not None:
        return f"a card with {format_bytes(vram_bytes)} free"
    return torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu"


def _precision(place: torch.device, host: Host, *, planned: bool) -> tuple[str, str]:
    if planned:
        return "bf16-mixed", "assumed: NVIDIA cards since Ampere (2020) have it; give precision for an older one"
    if place.type == "cuda":
        major, minor = torch.cuda.get_device_capability(place)
        if major >= 8:
            return "bf16-mixed", f"compute capability {major}.{minor} has bfloat16, which needs no loss scaling"
        return "16-mixed", f"compute capability {major}.{minor} has no bfloat16"
    if host.has_fast_bf16:
        return "bf16-mixed", "this processor multiplies bfloat16 itself"
    return "32-true", "this processor has no bfloat16 arithmetic; emulation would be slower"


def _largest(
    workload: Workload, device: str, precision: str, budget: int, free: int, wanted: int | None
) -> tuple[MemoryEstimate, str]:
    """The estimate at the largest batch that fits the budget, and how it was found."""
    most = min(wanted or MOST, MOST)
    first = estimate_memory(workload, batch=2, precision=precision, device=device)
    room = budget - first.fixed_bytes
    growth = max(1, first.activations_bytes_per_sample)
    size = rounded_batch(min(most, room // growth))
    while size > 0:
        memory = estimate_memory(workload, batch=size, precision=precision, device=device)
        if memory.total_bytes <= budget:
            told = (
                f"{format_bytes(memory.total_bytes)} of {format_bytes(free)} free, {SHARE:.0%} of which may be filled"
            )
            limit = "; no more was wanted" if wanted and size == rounded_batch(wanted) else ""
            return memory, told + limit
        size = rounded_batch(min(size - 1, size * 7 // 8))
    raise OutOfMemory(
        f"batch = 1 of {workload.name!r} is estimated at {format_bytes(first.fixed_bytes + growth)}, and "
        f"{format_bytes(budget)} ({SHARE:.0%} of {format_bytes(free)} free) may be filled",
        remedy="Take a smaller input or model, a half precision, or a device with more memory",
    )


def rounded_batch(size: int) -> int:
    """The next multiple of 8 below, or power of two below 8; 0 when there is none."""
    if size >= 8:
        return size // 8 * 8
    return 1 << (size.bit_length() - 1) if size > 0 else 0


def _layout(workload: Workload) -> tuple[bool, str]:
    if has_convolutions(Imitation(workload, "cpu", None).model):
        return True, "it has convolutions, whose fast kernels want it"
    return False, "it has no 2-D or 3-D convolutions"


def _workers(host: Host, device: str) -> tuple[int, str]:
    """A guess: a loader's cost is known only once it has run."""
    cores = host.usable_cores
    quota = f", {host.quota_cpus:g} CPUs of quota" if host.quota_cpus else ""
    said = f"a guess: {cores} usable cores ({host.logical_cpus} in the affinity set{quota})"
    if device == "cuda":
        return max(1, min(MOST_WORKERS, cores - 1)), said + ", one left to the training process"
    return min(MOST_WORKERS, cores // 4), said + ", most of which compute"
