"""Several processes that train one model, each with a camera of its own at every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from hotlap.engine.place import Place
from hotlap.splat.state import SplatState

SHARED = ("stats.grad", "stats.count", "stats.world")
"""Densification's statistics, of which each process has those of its own views until they are shared."""


class Team(Protocol):
    """The processes that share each step."""

    rank: int
    size: int

    def reduce(self, grads: dict[str, Tensor], visible: Tensor) -> None:
        """Gradients become their mean over all processes, and visible what any of them has seen, in place."""

    def share_stats(self, state: SplatState) -> None:
        """Densification's statistics become those of all cameras, in every process."""

    def each(self, own: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        """What every process has of its own, on the CPU; empty for one process, which needs to ask nobody."""

    def share_views(self, tables: Sequence[Tensor], numbers: Sequence[int]) -> None:
        """The row of its own view that each process has changed becomes everybody's; ``numbers`` are all views."""

    def mean(self, value: float) -> float:
        """The mean over all processes."""


class Alone:
    """One process."""

    rank, size = 0, 1

    def reduce(self, grads: dict[str, Tensor], visible: Tensor) -> None:
        """Nothing: there is nobody else."""

    def share_stats(self, state: SplatState) -> None:
        """Nothing: they are all there are."""

    def each(self, own: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        return []

    def share_views(self, tables: Sequence[Tensor], numbers: Sequence[int]) -> None:
        """Nothing: there is nobody else."""

    def mean(self, value: float) -> float:
        return value


class Together:
    """The processes that torchrun started."""

    def __init__(self, place: Place, device: torch.device) -> None:
        self.rank, self.size, self.device = place.rank, place.size, device
        if not dist.is_initialized():
            card = device.type == "cuda"
            dist.init_process_group("nccl" if card else "gloo", device_id=device if card else None)

    def reduce(self, grads: dict[str, Tensor], visible: Tensor) -> None:
        for name, grad in grads.items():
            if name not in ("means2d", "means2d_abs", "viewmats"):  # statistics and poses are each view's own
                dist.all_reduce(grad)
                grad.div_(self.size)
        dist.all_reduce(visible.view(torch.uint8), dist.ReduceOp.MAX)

    def share_stats(self, state: SplatState) -> None:
        for name in SHARED:
            dist.all_reduce(state[name])
        state["stats.world"].div_(self.size)  # it is divided by steps, not by how often a splat was seen

    def each(self, own: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        found: list[dict[str, Tensor]] = [{} for _ in range(self.size)]
        for name, tensor in own.items():
            parts = [torch.empty_like(tensor) for _ in found]
            dist.all_gather(parts, tensor)
            for one, part in zip(found, parts, strict=True):
                one[name] = part.cpu()
        return found

    def share_views(self, tables: Sequence[Tensor], numbers: Sequence[int]) -> None:
        if not tables:
            return
        own = torch.cat([table[numbers[self.rank]].flatten() for table in tables])
        rows = [torch.empty_like(own) for _ in numbers]
        dist.all_gather(rows, own)
        for number, row in zip(numbers, rows, strict=True):  # two of the same view have made the same step
            for table, part in zip(tables, row.split([table[0].numel() for table in tables]), strict=True):
                table[number] = part.view(table.shape[1:])

    def mean(self, value: float) -> float:
        total = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return float(total) / self.size

    def leave(self) -> None:
        """The last thing that is done together is over."""
        dist.destroy_process_group()
