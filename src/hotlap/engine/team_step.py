"""The exact step of several processes: they vote before they share gradients, and overlap the two once it is safe."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hotlap.base.errors import OutOfMemory
from hotlap.device.memory import is_out_of_memory
from hotlap.engine.exact import ExactStep, Loss, StepLost
from hotlap.engine.split import micro_ranges, take
from hotlap.engine.step_result import StepResult
from hotlap.engine.sums import Sums, not_zero, power_of_two, scale_gradients
from hotlap.engine.trace import Trouble
from hotlap.engine.undo import first_line
from hotlap.workload import Batch

if TYPE_CHECKING:
    from hotlap.engine.distributed import ProcessTeam

_NEWER = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
_LEAVES_BUFFERS_ALONE: dict[str, Any] = {"forward_sync_buffers" if _NEWER else "broadcast_buffers": False}
EXIT_RESTART = 75
"""How a process leaves that wants all of them to be started again; the system's "try again later"."""


class SplitWanted(OutOfMemory):
    """Memory ran out where the others could not be asked; all start again from the last checkpoint, split further."""

    exit_code = EXIT_RESTART

    def __init__(self, what: str, micro: int, *, recompute: bool = False) -> None:
        self.micro, self.recompute = micro, recompute
        also = " and activation checkpointing" if recompute else ""
        super().__init__(
            f"memory ran out while gradients were being shared: {what}",
            remedy=f"torchrun starts all processes again (--max-restarts), with micro-batches of {micro}{also}",
        )


class TeamStep(ExactStep):
    """An exact step whose batch is shared by a team.

    For ``probation`` steps after a start or a new split, every process computes alone, all vote whether memory ran out
    anywhere, and only then are gradients added up. After that, gradients travel while the last micro-batch's backward
    pass still runs. The vote then comes before that pass, so that running out of memory in it can only be mended by a
    new start (``SplitWanted``).
    """

    team: ProcessTeam

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        *,
        team: ProcessTeam,
        probation: int = 50,
        **settings: Any,
    ) -> None:
        super().__init__(model, optimizer, loss, team=team, **settings)
        self._reserve()
        self._probation: float = probation
        self._num_voted = 0
        self._overlapping: DistributedDataParallel | None = None

    def _reserve(self) -> None:
        self.team.reserve(self._parameters())

    @property
    def overlaps(self) -> bool:
        """Whether the next step shares gradients during its last backward pass."""
        return self._num_voted >= self._probation and self._unit is not None

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "unit": self._unit}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._unit = state.get("unit")
        self._begin_probation()

    def split_to(self, micro: int, *, recompute: bool = False) -> None:
        """Goes on with micro-batches of at most ``micro``, as one that asked for a new start wants it."""
        now = self.state_dict()
        now |= {"micro": min(now["micro"] or micro, micro), "quiet": 0}
        self.load_state_dict({**now, "recomputing": recompute or self.recomputing})

    def _begin_probation(self) -> None:
        self._num_voted = 0
        self._overlapping = None

    def _try_larger(self, total: int) -> int | None:
        before = super()._try_larger(total)
        if before is not None:
            self._begin_probation()
        return before

    def _split_further(self, total: int, trouble: Trouble, grown_from: int | None, num_splits: int) -> None:
        self._begin_probation()
        super()._split_further(total, trouble, grown_from, num_splits)

    def _gradients(self, batch: Batch | None, total: int, first_sample: int, *, traced: bool) -> StepResult | None:
        if self.overlaps and self._wrap():
            return self._overlapped(batch, total, first_sample)
        done = super()._gradients(batch, total, first_sample, traced=traced)
        if done is not None:
            self._num_voted += 1
            if self._unit is None:
                self._unit = power_of_two(float(done.count))
        return done

    def _wrap(self) -> bool:
        """Makes the overlapping form of the loss, if it is not there; False when there is no room for its buffers."""
        if self._overlapping is not None:
            return True
        failed = False
        try:
            # Parameters that a step does not touch are looked for every time: without that, a single one leaves the
            # processes with different gradients and no error.
            self._overlapping = DistributedDataParallel(
                _LossModule(self.model, self._loss_of),
                init_sync=False,
                **_LEAVES_BUFFERS_ALONE,
                find_unused_parameters=True,
                gradient_as_bucket_view=True,
            )
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failed = True
        if self.team.any_failed(failed):
            self._overlapping = None
            self._probation = math.inf
            self._say("there is no memory for overlapping; gradients are shared after each backward pass instead")
            return False
        return True

    def _overlapped(self, batch: Batch | None, total: int, first_sample: int) -> StepResult | None:
        failed: Exception | None = None
        sums, last = Sums(num_micro=0, largest=self._size(total), divisor=self._unit), None
        try:
            last = self._up_to_last_backward(batch, total, first_sample, sums)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failed = error
        vote = self.team.vote(failed=failed is not None, empty=total == 0)
        if vote.failed or vote.empty:
            last = None
            self._overlapping = None  # it now waits for a backward pass that will not come
            if failed is not None:
                raise failed
            if vote.failed:
                return None
            self._recover()  # somebody has no sample to run a backward pass on
            return super()._gradients(batch, total, first_sample, traced=False)
        assert last is not None
        try:
            with self.team.sharing():
                last.backward()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise SplitWanted(first_line(error), max(1, -(-self._size(total) // 2))) from error
        return self._shared(sums, total)

    def _up_to_last_backward(self, batch: Batch | None, total: int, first_sample: int, sums: Sums) -> Tensor | None:
        """The last micro-batch's loss, ready for its backward pass; all other passes are done."""
        self._begin()
        assert self._overlapping is not None
        last = None
        ranges = micro_ranges(total, self._size(total)) if total else []
        for begin, end in ranges:
            if self.key is not None:
                self.key.set_part(first_sample + begin, end - begin)
            is_last = end == total
            self._overlapping.require_backward_grad_sync = is_last
            part, num = self._overlapping(take(batch, begin, end))
            scaled = part / sums.divisor
            last = scaled if self.scaler is None else self.scaler.scale(scaled)
            if not is_last:
                last.backward()
            sums.add(part.detach(), num.detach() if isinstance(num, Tensor) else num)
            sums.num_micro += 1
        return last

    def _shared(self, sums: Sums, total: int) -> StepResult:
        """Divides the gradients that all processes now have by the true count."""
        try:
            total_loss, count = self._in_double(sums.loss), self._in_double(sums.count)
            total_loss, count = self.team.total(torch.stack([total_loss, count]))
            # What DistributedDataParallel gives is the mean over the processes.
            scale_gradients(self._parameters(), sums.divisor * self.team.size / not_zero(count))
            norm = self._unscale_and_clip()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise StepLost(f"memory ran out after the processes had shared gradients: {first_line(error)}") from error
        return StepResult(
            loss=total_loss / not_zero(count),
            count=count,
            num_samples=total,
            micro=self._size(total),
            num_micro=sums.num_micro,
            grad_norm=norm,
        )

    def __call__(self, batch: Batch | None, *, first_sample: int = 0) -> StepResult:
        result = self.gradients(batch, first_sample=first_sample)
        try:
            self._update()
        except StepLost:
            raise
        except OutOfMemory as error:  # the others have made this step
            raise StepLost(error.what) from error
        return result


class _LossModule(nn.Module):
    """The loss as a module of the batch, so that what is wrapped sees all of a forward pass, whatever it calls."""

    def __init__(self, model: nn.Module, loss: Callable[[Batch], tuple[Tensor, Tensor | int]]) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor | int]:
        return self._loss(batch)
