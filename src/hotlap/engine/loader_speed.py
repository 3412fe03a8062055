"""How fast a loader delivers: time to the first batch, then samples a second in windows, once it runs steadily."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psutil
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import default_collate

from hotlap.base.errors import ConfigError, DataError
from hotlap.engine.loader import Loaded, TrainLoader, dataset_size
from hotlap.engine.loader_choice import (
    Choice,
    Speed,
    candidates,
    choose,
    consumption_of,
    rate_that_decides,
    read_limits,
    worker_counts,
)
from hotlap.engine.loader_search import search
from hotlap.engine.loader_settings import LoaderSettings
from hotlap.engine.prefetch import DevicePrefetcher
from hotlap.workload import Batch

WINDOWS = 5
CLEAR, CLEAR_WINDOWS = 1.25, 2
"""So many windows are enough where each is so many times above, or below, the rate that decides."""
MAX_SECONDS = 30.0
"""A setting so slow that its windows take longer than this gets fewer of them."""


def make_loader(
    data: Any,
    settings: LoaderSettings,
    *,
    batch: int,
    seed: int,
    device: torch.device,
    collate: Callable[[list[Any]], Batch] = default_collate,
    on_bad_sample: str = "raise",
) -> TrainLoader:
    """The engine's own loader with ``settings``; its workers live through epochs, for starting is measured apart."""
    size = dataset_size(data)
    if batch > size:
        raise ConfigError(
            f"batch = {batch} is larger than the dataset of {size} samples",
            expected=f"at most {size}",
            remedy="Take a smaller batch or more data",
        )
    kept = replace(settings, persistent_workers=settings.num_workers > 0)
    return TrainLoader(
        data, batch=batch, seed=seed, settings=kept, collate=collate, on_bad_sample=on_bad_sample, device=device
    )


def measure_speed(
    loader: TrainLoader, device: torch.device, *, seconds: float, windows: int = WINDOWS, decides: float | None = None
) -> Speed:
    """The speed at which ``loader`` brings batches to ``device`` for a consumer that never keeps it waiting.

    Fewer windows are enough where all of them lie far on one side of ``decides``, the rate that is asked for.
    """
    before = {child.pid for child in multiprocessing.active_children()}
    began = time.perf_counter()
    batches = DevicePrefetcher(_endless(loader), device)
    try:
        first = next(batches)
        start_s = time.perf_counter() - began
        # These were made while the workers started, so they say nothing of the speed at which more will come.
        for _ in range(loader.settings.in_flight):
            next(batches)
            if time.perf_counter() - began > MAX_SECONDS:
                break
        rates: list[float] = []
        while len(rates) < windows and (len(rates) < 2 or time.perf_counter() - began < MAX_SECONDS):
            rates.append(_window(batches, device, seconds, at_least=max(1, loader.settings.num_workers)))
            if decides is not None and _is_clear(rates, decides):
                break
        if not any(rates):
            raise DataError("every sample was bad, so no speed can be told", expected="samples that can be read")
        pids = {child.pid for child in multiprocessing.active_children()} - before
        worker_bytes = max((_own_bytes(pid) for pid in pids if pid), default=None)
    finally:
        loader.close()
    return Speed(
        rates=rates,
        start_s=start_s,
        batch_bytes=batch_bytes(first.batch),
        worker_bytes=worker_bytes if loader.settings.num_workers else None,
        num_samples=loader.num_samples,
    )


def _is_clear(rates: list[float], decides: float) -> bool:
    low, high = min(rates) / decides, max(rates) / decides
    return len(rates) >= CLEAR_WINDOWS and (low >= CLEAR or high <= 1 / CLEAR)


def _endless(loader: TrainLoader) -> Iterator[Loaded]:
    for epoch in itertools.count():
        yield from loader.epoch(epoch)


def _window(batches: Iterator[Loaded], device: torch.device, seconds: float, at_least: int) -> float:
    """Samples a second until ``seconds`` are over; workers deliver in turn, so each gets its turn at least once."""
    samples, num_batches, began = 0, 0, time.perf_counter()
    while num_batches < at_least or time.perf_counter() - began < seconds:
        samples += next(batches).num_samples
        num_batches += 1
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return samples / (time.perf_counter() - began)


def batch_bytes(batch: Batch | None) -> int:
    """Bytes of a batch's tensors."""
    return sum(leaf.nbytes for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor))


def _own_bytes(pid: int) -> int:
    """Memory that a process shares with no other; 0 when it is gone or nothing may be read of it."""
    try:
        return int(psutil.Process(pid).memory_full_info().uss)
    except psutil.Error:
        return 0


def quick_choice(
    data: Any,
    *,
    batch: int,
    step_ms: float,
    device: torch.device,
    collate: Callable[[list[Any]], Batch] = default_collate,
    seconds: float = 0.2,
) -> Choice:
    """The choice for a dataset that this process holds, measured right here: quick, and for one's own loop."""
    if not 0 < step_ms < math.inf:
        raise ConfigError(f"step_ms = {step_ms} is not a time", expected="milliseconds a step of the model, above 0")
    limits, consumption = read_limits(), consumption_of(batch, step_ms)

    def measure(settings: LoaderSettings) -> Speed:
        loader = make_loader(data, settings, batch=batch, seed=0, device=device, collate=collate)
        decides = rate_that_decides(settings, consumption)
        return measure_speed(loader, device, seconds=seconds, windows=3, decides=decides)

    tries = candidates(worker_counts(limits.cpus), pin_memory=device.type == "cuda")
    return choose(list(search(tries, measure, limits, consumption=consumption)), consumption)
