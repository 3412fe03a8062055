"""Probes that measure what a device can reach: copies, matrix products, transfers. Random data, never zeros."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hotlap.device.host import read_host
from hotlap.device.nvml import Nvml
from hotlap.records.ceilings import Ceiling, Ceilings, device_key
from hotlap.records.codec import encode
from hotlap.records.run import now
from hotlap.tools.doctor.finding import Finding, passed
from hotlap.tools.doctor.registry import probe

_WHY = "A measured ceiling tells how far a program is from what this device reaches, not from a data sheet."
_MIN_REPEATS, _MAX_REPEATS = 3, 20


def repeat(seconds_of: Callable[[], float], budget_s: float) -> list[float]:
    """Seconds of each run after one warm-up: at least three, at most twenty, until the budget is spent."""
    seconds_of()
    times: list[float] = []
    while len(times) < _MIN_REPEATS or (sum(times) < budget_s and len(times) < _MAX_REPEATS):
        times.append(seconds_of())
    return times


def _wall(work: Callable[[], Any], settle: Callable[[], Any] = lambda: None) -> Callable[[], float]:
    """Times ``work`` by the host's clock, the device idle before and after."""

    def once() -> float:
        settle()
        begin = time.perf_counter()
        work()
        settle()
        return time.perf_counter() - begin

    return once


def _summary(ceilings: Ceilings) -> Finding:
    parts = [f"{c.quantity} {c.dtype}".strip() + f" {c.median:.4g} {c.unit}" for c in ceilings.ceilings]
    flags = f" ({'; '.join(ceilings.flags)})" if ceilings.flags else ""
    return passed(f"{ceilings.device}: {', '.join(parts)}{flags}", ceilings=encode(ceilings))


@probe("ceilings-cpu", group="measure", why=_WHY, needs=("torch-import",), alone=True, patience=2.0)
def ceilings_cpu() -> Finding:
    """Copy bandwidth and matmul rates of the processor with torch's thread count."""
    import torch

    host, threads = read_host(), torch.get_num_threads()
    found = [_cpu_copy()]
    # bf16 is small because processors without it emulate it slowly.
    for name, dtype, size in (
        ("fp64", torch.float64, 1024),
        ("fp32", torch.float32, 2048),
        ("bf16", torch.bfloat16, 512),
    ):
        a, b = torch.randn(size, size, dtype=dtype), torch.randn(size, size, dtype=dtype)
        out = torch.empty_like(a)
        times = repeat(_wall(lambda a=a, b=b, out=out: torch.matmul(a, b, out=out)), 1.5)  # type: ignore[misc]
        found.append(_matmul(name, size, times))
    version = str(torch.__version__)
    key = device_key(f"{host.cpu_model}_{threads}-threads", version)
    device = f"{host.cpu_model}, {threads} threads"
    return _summary(Ceilings(kind="cpu", device=device, key=key, torch=version, measured_at=now(), ceilings=found))


def _cpu_copy() -> Ceiling:
    import torch

    x = torch.randn(48 * 2**20)  # 192 MiB, beyond any cache
    y = torch.empty_like(x)
    moved = 2 * x.numel() * x.element_size()
    times = repeat(_wall(lambda: y.copy_(x)), 1.0)
    return Ceiling(
        quantity="copy", unit="GB/s", values=[moved / t / 1e9 for t in times], detail="192 MiB read and written"
    )


def _matmul(dtype: str, size: int, times: list[float]) -> Ceiling:
    rates = [2 * size**3 / t / 1e12 for t in times]
    return Ceiling(quantity="matmul", dtype=dtype, unit="TFLOP/s", values=rates, detail=f"{size} x {size} x {size}")


@probe("ceilings-gpu", group="measure", why=_WHY, needs=("cuda-start", "kernel-launch"), alone=True, patience=2.0)
def ceilings_gpu() -> Finding:
    """Copy bandwidth, matmul rates and transfers of the first visible card."""
    import torch

    card = torch.cuda.get_device_properties(0)
    uuid = str(card.uuid)
    found = [_gpu_copy()]
    found += [_gpu_matmul(name) for name in _gpu_dtypes(torch.cuda.get_device_capability(0))]
    flags = _slowed(uuid)
    found += _transfers()
    version = str(torch.__version__)
    identity = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
    return _summary(
        Ceilings(
            kind="cuda",
            device=card.name,
            key=device_key(identity, version),
            torch=version,
            measured_at=now(),
            ceilings=found,
            flags=flags,
        )
    )


def _gpu_dtypes(capability: tuple[int, int]) -> tuple[str, ...]:
    return ("fp64", "fp32", "tf32", "bf16", "fp16") if capability >= (8, 0) else ("fp64", "fp32", "fp16")


def _events(work: Callable[[], Any]) -> Callable[[], float]:
    """Times ``work`` by the card's own clock."""
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def once() -> float:
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    return once


def _gpu_copy() -> Ceiling:
    import torch

    free, _ = torch.cuda.mem_get_info()
    count = min(2**30, free // 4) // 4  # beyond any cache, and within what is left
    x = torch.randn(count, device="cuda")
    y = torch.empty_like(x)
    times = repeat(_events(lambda: y.copy_(x)), 1.0)
    rates = [2 * x.numel() * x.element_size() / t / 1e9 for t in times]
    detail = f"{count * 4 / 2**20:.0f} MiB read and written"
    return Ceiling(quantity="copy", unit="GB/s", values=rates, detail=detail)


def _gpu_matmul(name: str) -> Ceiling:
    """The rate at the size from which a product takes 5 ms, so that fast and slow dtypes both fill the card."""
    import torch

    kinds = {"fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}
    dtype = kinds.get(name, torch.float32)
    torch.backends.cuda.matmul.fp32_precision = "tf32" if name == "tf32" else "ieee"
    free, _ = torch.cuda.mem_get_info()
    size = 1024
    while True:
        a = torch.randn(size, size, device="cuda").to(dtype)
        b = torch.randn(size, size, device="cuda").to(dtype)
        out = torch.empty_like(a)
        once = _events(lambda a=a, b=b, out=out: torch.matmul(a, b, out=out))  # type: ignore[misc]
        once()
        next_bytes = 5 * (2 * size) ** 2 * a.element_size()
        if once() > 5e-3 or size >= 16384 or next_bytes > free // 2:
            return _matmul(name, size, repeat(once, 1.0))
        size *= 2


def _transfers() -> list[Ceiling]:
    import torch

    count = 64 * 2**20  # 256 MiB of float32
    card, settle = torch.randn(count, device="cuda"), torch.cuda.synchronize
    found = []
    for name in ("pageable", "pinned"):
        host = torch.randn(count)
        host = host.pin_memory() if name == "pinned" else host
        for way, work in (("h2d", lambda h=host: card.copy_(h)), ("d2h", lambda h=host: h.copy_(card))):  # type: ignore[misc]
            rates = [4 * count / t / 1e9 for t in repeat(_wall(work, settle), 0.7)]
            found.append(Ceiling(quantity=f"{way}_{name}", unit="GB/s", values=rates, detail="256 MiB"))
    return found


def _slowed(uuid: str) -> list[str]:
    """What the driver says held the card back, read right after the work."""
    with Nvml() as nvml:
        state = nvml.state(nvml.handle(uuid))
    return [f"slowed by: {reason}" for reason in state.throttle] if state else []
