"""The processes that torchrun started, as one team: votes, sums and shared objects.

Votes and objects go over Gloo, beside the group that carries gradients: they never wait for a device, and they work
while one of the processes is short of its memory.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from hotlap.base.errors import DeviceUnavailable, UsageError, WorkerDied
from hotlap.device.memory import is_out_of_memory
from hotlap.engine.config import TrainConfig
from hotlap.engine.meet import meet
from hotlap.engine.parts import pick_device
from hotlap.engine.place import Place, find_place
from hotlap.engine.undo import first_line

BUCKET_BYTES = 25 * 2**20
"""Gradients are added up in pieces of this size: large enough for the network, small enough to find room."""
PATIENCE = timedelta(days=7)
"""How long objects are waited for: the first process may evaluate or save as long as it takes. Should it die instead,
its connections close, which ends the wait at once."""
_CONNECTION = re.compile(r"gloo|nccl|connection (closed|reset)", re.IGNORECASE)
_GLOO_FRAME = re.compile(r"^\[\S+:\d+\] |\. This is typically caused by .*$")
"""What stands around gloo's message: a line of its own source, and advice that speaks of other programs."""


class TeamLost(WorkerDied):
    """Another process of the team is gone or does not answer."""


class Vote(NamedTuple):
    """What is true of at least one process."""

    failed: bool
    empty: bool
    stop: bool


def check_devices(device: str, nproc: int) -> None:
    """Refuses to put several processes on one card."""
    kind, _, index = device.partition(":")
    if nproc > 1 and index:
        raise UsageError(
            f"device = {device!r} with nproc = {nproc}",
            expected="cuda, of which each process takes its own",
            remedy="Choose cards with CUDA_VISIBLE_DEVICES",
        )
    if kind == "cpu" or (kind == "auto" and not torch.cuda.is_available()):
        return
    if nproc > torch.cuda.device_count():
        raise DeviceUnavailable(
            f"nproc = {nproc}, but {torch.cuda.device_count()} CUDA devices are visible",
            expected="a device for each process",
            remedy=f"Take --nproc {max(1, torch.cuda.device_count())} or --device cpu",
        )


def joined_team(config: TrainConfig) -> ProcessTeam | None:
    """The team this process belongs to, once all of it is there; None outside of torchrun."""
    place = find_place()
    if place is None:
        return None
    check_devices(config.device, place.local_size)
    return ProcessTeam(place, pick_device(config.device, place.local_rank), timeout_s=config.timeout_s)


class ProcessTeam:
    """One process's door to the others. Every method is called by all of them, in the same order."""

    def __init__(self, place: Place, device: torch.device, *, timeout_s: float = 600.0) -> None:
        self.rank, self.size, self.place, self.device = place.rank, place.size, place, device
        self._stop = self._stop_agreed = False
        self._flat: dict[torch.dtype, Tensor] = {}
        timeout = timedelta(seconds=timeout_s)
        with self._together("join"):
            store, _, _ = next(rendezvous("env://", place.rank, place.size, timeout=timeout))
            word = meet(store, place.rank, place.size, timeout_s=timeout_s)
            dist.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                store=dist.PrefixStore(word, store),  # type: ignore[attr-defined]
                rank=place.rank,
                world_size=place.size,
                timeout=timeout,
            )
            self._votes: Any = dist.new_group(backend="gloo", timeout=timeout)
            self._objects: Any = dist.new_group(backend="gloo", timeout=PATIENCE)
            # Connects now: the memory that this takes on a card is better missed before the first step than in it.
            dist.all_reduce(torch.zeros(1, device=device))

    def destroy(self) -> None:
        """Takes leave; for a team whose training came to its end on every process."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def vote(self, *, failed: bool, empty: bool = False) -> Vote:
        """What is true of any process, in one message; ``empty`` says that this one has no samples."""
        mine = torch.tensor([failed, empty, self._stop], dtype=torch.int32)
        with self._together("vote"):
            dist.all_reduce(mine, dist.ReduceOp.MAX, group=self._votes)
        told = Vote(*(bool(flag) for flag in mine.tolist()))
        self._stop_agreed = told.stop
        return told

    def any_failed(self, failed: bool) -> bool:
        return self.vote(failed=failed).failed

    def any_stops(self, stop: bool) -> bool:
        self._stop = stop
        return self._stop_agreed

    def same(self, value: Any) -> Any:
        holder = [value if self.rank == 0 else None]
        with self._together("hear from process 0" if self.rank else "tell the others"):
            dist.broadcast_object_list(holder, src=0, group=self._objects)
        return holder[0]

    def gather(self, value: Any) -> list[Any]:
        found: list[Any] | None = [None] * self.size if self.rank == 0 else None
        with self._together("report to process 0" if self.rank else "hear from the others"):
            dist.gather_object(value, found, dst=0, group=self._objects)
        return found or []

    def smallest(self, value: int) -> int:
        mine = torch.tensor(value, dtype=torch.int64)
        with self._together("compare"):
            dist.all_reduce(mine, dist.ReduceOp.MIN, group=self._votes)
        return int(mine)

    def total(self, value: Tensor) -> Tensor:
        value = value.clone()
        with self._together("add up"):
            dist.all_reduce(value)
        return value

    def reserve(self, parameters: Sequence[nn.Parameter]) -> None:
        """Takes the memory that ``sum_gradients`` works in: later on, its lack could not be voted on."""
        for dtype in dict.fromkeys(p.dtype for p in parameters if p.requires_grad):
            sizes = [p.numel() for p in parameters if p.dtype == dtype and p.requires_grad]
            room = min(sum(sizes), BUCKET_BYTES // dtype.itemsize)
            self._flat[dtype] = torch.empty(room, dtype=dtype, device=self.device)

    def sum_gradients(self, parameters: list[nn.Parameter]) -> None:
        """Adds up every gradient over all processes.

        One that is missing here counts as zero where others have it; one that nobody has stays missing.
        """
        has = torch.tensor([p.grad is not None for p in parameters], dtype=torch.uint8)
        with self._together("compare gradients"):
            dist.all_reduce(has, dist.ReduceOp.MAX, group=self._votes)
        used = [p for p, some in zip(parameters, has.tolist(), strict=True) if some]
        for parameter in used:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            elif parameter.grad.is_sparse:
                raise UsageError(
                    f"a gradient of shape {list(parameter.shape)} is sparse, which several processes cannot share",
                    remedy="Build the embedding with sparse=False",
                )
        for dtype in dict.fromkeys(p.dtype for p in used):
            gradients = [p.grad for p in used if p.dtype == dtype and p.grad is not None]
            for bucket in buckets(gradients, BUCKET_BYTES):
                self._sum(bucket)

    @torch.no_grad()
    def _sum(self, gradients: list[Tensor]) -> None:
        if len(gradients) == 1 and gradients[0].is_contiguous():
            with self._together("add up gradients"):
                dist.all_reduce(gradients[0])
            return
        sizes = [g.numel() for g in gradients]
        flat = self._flat.get(gradients[0].dtype)
        if flat is None or flat.numel() < sum(sizes):
            flat = torch.empty(sum(sizes), dtype=gradients[0].dtype, device=gradients[0].device)
        flat = flat[: sum(sizes)]
        parts = [part.view(g.shape) for part, g in zip(flat.split(sizes), gradients, strict=True)]
        torch._foreach_copy_(parts, gradients)
        with self._together("add up gradients"):
            dist.all_reduce(flat)
        torch._foreach_copy_(gradients, parts)

    @contextlib.contextmanager
    def sharing(self) -> Iterator[None]:
        """Around passes of torch's own that talk to the others; a lost connection there is told as one."""
        try:
            yield
        except RuntimeError as error:
            if is_out_of_memory(error) or not _CONNECTION.search(str(error)):
                raise
            raise self._lost("share gradients", error) from error

    @contextlib.contextmanager
    def _together(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, OSError) as error:
            if is_out_of_memory(error):
                raise
            raise self._lost(doing, error) from error

    def _lost(self, doing: str, error: Exception) -> TeamLost:
        return TeamLost(
            f"process {self.rank} of {self.size} cannot {doing}: {_GLOO_FRAME.sub('', first_line(error))}",
            remedy="Another process ended or hangs; what it said first tells why",
        )


def buckets(gradients: Sequence[Tensor], most_bytes: int) -> list[list[Tensor]]:
    """The gradients in order, in groups of at most ``most_bytes``; a larger one is alone."""
    found: list[list[Tensor]] = []
    room = 0
    for gradient in gradients:
        size = gradient.numel() * gradient.element_size()
        if not found or size > room:
            found.append([])
            room = most_bytes
        found[-1].append(gradient)
        room -= size
    return found
