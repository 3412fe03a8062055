"""Weights, gradients and optimizer state in shards, one on each process, for models that do not fit on a device.

Checkpoints hold whole tensors, in the same shape as those of an unsharded training: either can go on from the other's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map

from hotlap.base.errors import OutOfMemory, UsageError
from hotlap.device.memory import is_out_of_memory
from hotlap.engine.split import micro_ranges, take
from hotlap.engine.step_result import StepResult
from hotlap.engine.sums import Sums, power_of_two
from hotlap.engine.team_step import SplitWanted, TeamStep
from hotlap.engine.trace import Trouble, place_of
from hotlap.engine.undo import first_line
from hotlap.measure.recompute import find_blocks
from hotlap.workload import Batch, sum_and_count

if TYPE_CHECKING:
    from hotlap.engine.distributed import ProcessTeam


class NothingFits(OutOfMemory):
    """One sample at a time does not fit even in shards; the other processes could not be asked for a checkpoint."""


def shard_model(model: nn.Module, device: torch.device, team: ProcessTeam) -> nn.Module:
    """The model, on ``device`` in shards: block by block, so that it never has to be there as a whole."""
    mesh = init_device_mesh(device.type, (team.size,))
    for _, block in find_blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def whole(state: Any, *, keep: bool) -> Any:
    """A state dict with every sharded tensor put together, in host memory; all processes take part, ``keep`` or not."""

    def gathered(leaf: Any) -> Any:
        if not isinstance(leaf, DTensor):
            return leaf
        full = leaf.full_tensor()
        return full.cpu() if keep else None

    return tree_map(gathered, state)


def shard_like(value: Any, like: Tensor) -> Any:
    """``value`` in shards as ``like`` is, if it is a tensor of its shape; as it was otherwise."""
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)


def load_whole(model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Puts the whole tensors of a checkpoint into a sharded model and its optimizer."""
    mine = model.state_dict()
    model.load_state_dict({name: shard_like(value, mine[name]) for name, value in state["model"].items()})
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    held = state["optimizer"]["state"]
    shards = {i: {name: shard_like(v, parameters[i]) for name, v in of.items()} for i, of in held.items()}
    optimizer.load_state_dict({**state["optimizer"], "state": shards})


class ShardedStep(TeamStep):
    """An exact step on a sharded model.

    Every forward and backward pass is made by all processes together, so nobody can be asked about memory in between:
    running out of it always ends in a new start with smaller micro-batches. All make the same number of passes; one
    with fewer samples repeats one of them with weight zero.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._spare: Batch | None = None

    def _reserve(self) -> None:
        """Nothing: gradients are shared by the sharded model itself."""

    def _gradients(self, batch: Batch | None, total: int, first_sample: int, *, traced: bool) -> StepResult | None:
        del traced
        if self._unit is None:
            samples = float(self.team.total(torch.tensor(float(total), device=self.device)))
            self._unit = power_of_two(samples)
        try:
            sums = self._passes(batch, total, first_sample)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise self._less(total, error) from error
        self.team.vote(failed=False)  # who was told to stop
        return self._shared(sums, total)

    def _passes(self, batch: Batch | None, total: int, first_sample: int) -> Sums:
        self._begin()
        ranges = micro_ranges(total, self._size(total)) if total else []
        num_passes = -self.team.smallest(-len(ranges))
        sums = Sums(num_micro=len(ranges), largest=self._size(total), divisor=self._unit)
        if batch is not None:
            self._spare = take(batch, 0, 1)
        for number in range(num_passes):
            mine = number < len(ranges)
            begin, end = ranges[number] if mine else (0, 1)
            if self.key is not None:
                self.key.set_part(first_sample + begin, end - begin)
            self.model.set_requires_gradient_sync(number == num_passes - 1)  # type: ignore[operator]
            with self.team.sharing():
                part, num = sum_and_count(self._loss_of(take(batch, begin, end) if mine else self._repeated()))
                (part / sums.divisor if mine else part * 0.0).backward()
            if mine:
                sums.add(part.detach(), num.detach() if isinstance(num, Tensor) else num)
        return sums

    def _repeated(self) -> Batch:
        if self._spare is None:
            raise UsageError(
                f"process {self.team.rank} has no sample in the first batch",
                expected=f"at least {self.team.size} samples in it",
                remedy="Take a larger --batch or fewer processes",
            )
        return self._spare

    def _less(self, total: int, error: Exception) -> OutOfMemory:
        size = self._size(total)
        if size > 1 and self.separable:
            return SplitWanted(first_line(error), -(-size // 2))
        if self.recompute == "auto" and not self.recomputing and find_blocks(self.model):
            return SplitWanted(first_line(error), max(1, size), recompute=True)
        told = self._give_up(size, Trouble(first_line(error), place_of(error, self.model)))
        return NothingFits(told.what, remedy=told.remedy)

    def _unscale_and_clip(self) -> Tensor | None:
        norm = super()._unscale_and_clip()
        return norm.full_tensor() if isinstance(norm, DTensor) else norm
