"""One training step on one effective batch: exact however it is split, and replayed whole when memory runs out."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from hotlap.base.errors import OutOfMemory, UsageError
from hotlap.device.memory import is_out_of_memory
from hotlap.engine.exactness import Inexact, find_inexact
from hotlap.engine.split import micro_ranges, num_samples, take
from hotlap.engine.trace import Place, Tracer, place_of
from hotlap.engine.undo import StepStart, Undo
from hotlap.measure.dropout import key_dropout
from hotlap.measure.recompute import find_blocks, recompute_blocks
from hotlap.workload import Batch

Loss = Callable[[nn.Module, Batch], "tuple[Tensor, Tensor | int]"]
Say = Callable[[str], None]

FIRST_STEPS = 3
"""Steps after a start or a new split whose optimizer step can always be undone: state is created there."""
UPDATE_ATTEMPTS = 3
"""As it is; with the allocator's cache emptied; one parameter at a time."""
LOOK_EVERY = 16
"""Steps between looks at how much of the allocator's memory is free."""


class StepLost(OutOfMemory):
    """Memory ran out where a step can be neither undone nor repeated; the last checkpoint is the way on."""

    def __init__(self, what: str) -> None:
        remedy = "Go on from the last checkpoint with --resume; a smaller --micro leaves more room"
        super().__init__(what, remedy=remedy)


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What one step did."""

    loss: Tensor
    """Mean over the effective batch, detached, on the device; reading it waits for the step."""
    count: Tensor | int
    """What the summed loss was divided by."""
    num_samples: int
    micro: int
    """Samples of a micro-batch in the attempt that went through."""
    num_micro: int
    num_splits: int = 0
    """Times memory ran out in this step."""
    recovery_s: float = 0.0
    """From the first failure to the beginning of the attempt that went through."""
    grad_norm: Tensor | None = None


class Team(Protocol):
    """Processes that share each effective batch."""

    rank: int
    size: int

    def any_failed(self, failed: bool) -> bool:
        """Whether it is true of any process; every process gets the same answer."""

    def same(self, value: Any) -> Any:
        """The first process's value, everywhere."""

    def gather(self, value: Any) -> list[Any]:
        """Every process's value, in order; only the first process gets them, the others get an empty list."""

    def smallest(self, value: int) -> int:
        """The smallest of all processes' values."""

    def total(self, value: Tensor) -> Tensor:
        """The sum over all processes."""

    def sum_gradients(self, parameters: list[nn.Parameter]) -> None:
        """Adds up every gradient over all processes."""


class ExactStep:
    """A training step that gives the same result for every split, and splits further instead of failing.

    >>> step = ExactStep(model, optimizer, lambda model, batch: (loss_sum, num_targets))
    >>> for batch in loader:
    ...     result = step(batch)

    The loss function returns the *sum* over its samples and the count that makes it a mean. Gradients are those of the
    sum over the whole effective batch divided by its whole count.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        *,
        compiled: nn.Module | None = None,
        micro: int | None = None,
        precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true",
        scaler: torch.amp.GradScaler | None = None,
        clip_norm: float | None = None,
        separable: bool = True,
        recompute: Literal["auto", "on", "off"] = "auto",
        regrow_after: int = 200,
        team: Team | None = None,
        say: Say = lambda text: None,
    ) -> None:
        """``compiled`` is what is called in place of ``model``: the same module, compiled or wrapped.

        ``micro`` None begins with the whole batch. ``recompute`` "auto" switches activation checkpointing on as the
        last step before giving up. ``regrow_after`` quiet steps, a micro-batch twice as large is tried again.
        """
        if micro is not None and micro < 1:
            raise UsageError(f"micro = {micro}", expected="at least one sample")
        if precision not in _AUTOCAST:
            raise UsageError(f"precision = {precision!r}", expected=", ".join(_AUTOCAST))
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self.precision, self.clip_norm, self.separable, self.team = precision, clip_norm, separable, team
        self.scaler = scaler
        if scaler is None and precision == "16-mixed":
            self.scaler = torch.amp.GradScaler(self.device.type)
        self.key = key_dropout(model, self.device)
        self.recompute = recompute
        self.recomputing = False
        self._compiled = compiled if compiled is not None else model
        self._say = say
        self.micro: int | None = micro
        self._largest = micro
        self._regrow_after, self._window, self._quiet = regrow_after, regrow_after, 0
        self._start = StepStart(model, self.device)
        self._young, self._watched = 0, 0
        self._roomy = False
        if recompute == "on":
            self._switch_recompute_on()

    def inexact(self) -> list[Inexact]:
        """What would make a split step differ from a whole one, by name."""
        return find_inexact(self.model, loss_is_separable=self.separable)

    def state_dict(self) -> dict[str, Any]:
        """The split in force and what led to it, for a checkpoint; a resumed run does not search again."""
        return {
            "micro": self.micro,
            "largest": self._largest,
            "window": self._window,
            "quiet": self._quiet,
            "recomputing": self.recomputing,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.micro, self._largest = state["micro"], state["largest"]
        self._window, self._quiet = state["window"], state["quiet"]
        if state["recomputing"] and not self.recomputing:
            self._switch_recompute_on()
        self._young = 0

    def __call__(self, batch: Batch | None, *, first_sample: int = 0) -> StepResult:
        """Trains on one effective batch; ``first_sample`` is its first sample's place where processes share a batch."""
        total = num_samples(batch) if batch is not None else 0
        if total == 0 and self.team is None:
            raise UsageError("a training step got a batch of 0 samples", expected="at least one")
        grown_from = self._try_larger(total)
        self._begin()
        num_splits, failed_at = 0, 0.0
        while True:
            trouble, done = _Trouble("another process ran out of memory", None), None
            began = time.perf_counter()
            try:
                done = self._gradients(batch, total, first_sample, traced=num_splits > 0 and self._size(total) == 1)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                trouble = _Trouble(_first_line(error), place_of(error, self.model))
            # Outside the except block: there the traceback would keep every tensor of the failed step alive.
            if done is not None:
                break
            failed_at = failed_at or began
            num_splits += 1
            self._recover()
            self._split_further(total, trouble, grown_from)
        self._update()
        self._quiet = 0 if num_splits else self._quiet + 1
        lost = began - failed_at if num_splits else 0.0
        return StepResult(num_samples=total, num_splits=num_splits, recovery_s=lost, **done)

    def _begin(self) -> None:
        """A new key for this step's dropout, and the picture to come back to; changes nothing when it fails."""
        random = torch.get_rng_state()
        for last in (False, True):
            try:
                if self.key is not None:
                    self.key.set_step(int(torch.randint(-(2**31), 2**31, ())))
                self._start.remember(self.scaler)
            except Exception as error:
                if last or not is_out_of_memory(error):
                    raise
            else:
                return
            torch.set_rng_state(random)
            self._release_memory()

    def _size(self, total: int) -> int:
        return total if self.micro is None else min(self.micro, total)

    def _gradients(self, batch: Batch | None, total: int, first_sample: int, *, traced: bool) -> dict[str, Any] | None:
        """Gradients with the split in force; None when another process of the team ran out of memory."""
        failed: Exception | None = None
        sums = None
        try:
            with Tracer(self.model) if traced else contextlib.nullcontext():
                sums = self._backward(batch, total, first_sample)
        except Exception as error:
            if self.team is None or not is_out_of_memory(error):
                raise
            failed = error
        if self.team is not None and self.team.any_failed(failed is not None):
            if failed is not None:
                raise failed
            return None
        assert sums is not None
        try:
            loss, count = self._normalise(sums)
            norm = self._clip()
        except Exception as error:
            if self.team is None or not is_out_of_memory(error):
                raise
            raise StepLost(f"memory ran out after the processes had shared gradients: {_first_line(error)}") from error
        return {
            "loss": loss,
            "count": count,
            "micro": self._size(total),
            "num_micro": sums.num_micro,
            "grad_norm": norm,
        }

    def _backward(self, batch: Batch | None, total: int, first_sample: int) -> _Sums:
        """Gradients of the summed loss over a provisional count, with the sum and its true count."""
        self.optimizer.zero_grad(set_to_none=True)
        ranges = micro_ranges(total, self._size(total)) if total else []
        sums = _Sums(torch.zeros((), device=self.device), 0, len(ranges))
        for begin, end in ranges:
            if self.key is not None:
                self.key.set_first_sample(first_sample + begin)
            with self._autocast():
                part, num = self.loss(self._compiled, take(batch, begin, end))
            if sums.divisor is None:
                # The true count is known only after the last part. One of about its size, drawn from the first part,
                # keeps half-precision gradients in range until then; with a single part it is the true one.
                sums.divisor = _at_least_one(num) * (total / (end - begin) if len(ranges) > 1 else 1)
            scaled = part / sums.divisor
            (scaled if self.scaler is None else self.scaler.scale(scaled)).backward()
            sums.loss = sums.loss + part.detach()
            sums.count = sums.count + (num.detach() if isinstance(num, Tensor) else num)
        return sums

    def _normalise(self, sums: _Sums) -> tuple[Tensor, Any]:
        """Adds up over the team and divides once by the true count; the mean loss and that count."""
        if self.team is None and sums.num_micro == 1:
            return sums.loss / _at_least_one(sums.count), sums.count
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        divisor = torch.as_tensor(1.0 if sums.divisor is None else sums.divisor, device=self.device).double()
        count = torch.as_tensor(sums.count, device=self.device).double()
        if self.team is None:
            _scale_gradients(parameters, divisor / _at_least_one(count))
            return sums.loss / _at_least_one(count).float(), sums.count
        _scale_gradients(parameters, divisor)  # divisors differ between processes; each takes its own out
        loss, count = self.team.total(torch.stack([sums.loss.double(), count]))
        self.team.sum_gradients(parameters)
        _scale_gradients(parameters, 1 / _at_least_one(count))
        return (loss / _at_least_one(count)).float(), count

    def _clip(self) -> Tensor | None:
        if self.clip_norm is None:
            return None
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        return torch.nn.utils.clip_grad_norm_(parameters, self.clip_norm)

    def _update(self) -> None:
        """Steps the optimizer. When memory runs out here the gradients are whole, so only this is done again."""
        may_fail, what = self._may_fail(), ""
        for attempt in range(UPDATE_ATTEMPTS):
            undo = None
            try:
                undo = Undo(self.optimizer) if attempt or may_fail else None
                self._optimizer_step()
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                what = _first_line(error)
            else:
                return
            if undo is not None:
                undo.back()
            elif not may_fail:
                raise StepLost(f"memory ran out in an optimizer step that was not expected to need any: {what}")
            self._young = 0
            self._release_memory()
            if attempt > 0:  # one parameter at a time needs the least
                self._say("out of memory in the optimizer step; parameters are now updated one by one")
                for group in self.optimizer.param_groups:
                    group.update({name: False for name in ("foreach", "fused") if name in group})
        raise OutOfMemory(
            f"memory ran out in the optimizer step of {type(self.optimizer).__name__}: {what}",
            remedy="What would help: an optimizer with less state (SGD), --fsdp over several devices, a smaller model",
        )

    def _optimizer_step(self) -> None:
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def _may_fail(self) -> bool:
        """Whether the optimizer step must be undoable: unless the allocator already holds all it could ask for."""
        self._young += 1
        if self.device.type != "cuda" or self._young <= FIRST_STEPS:
            return True
        if self._watched % LOOK_EVERY == 0:
            free = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
            weights = [p for group in self.optimizer.param_groups for p in group["params"]]
            self._roomy = free >= 3 * sum(p.numel() * p.element_size() for p in weights) + 64 * 2**20
        self._watched += 1
        return not self._roomy

    def _recover(self) -> None:
        """Everything as it was when the step began."""
        self.optimizer.zero_grad(set_to_none=True)
        self._release_memory()
        self._start.restore(self.scaler)

    def _release_memory(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _split_further(self, total: int, trouble: _Trouble, grown_from: int | None) -> None:
        """A smaller split for the next attempt; raises when there is none."""
        size = max(1, self._size(total))
        if self.team is not None:
            size = self.team.smallest(size if total else 2**31 - 1)
        self._young = self._quiet = 0
        if grown_from is not None:  # only a try: back to what works, and wait longer before the next
            self.micro, self._window = grown_from, 2 * self._window
            return
        if size > 1 and self.separable:
            self.micro = -(-size // 2)
            self._say(f"out of memory with {size} samples; the step is replayed in micro-batches of {self.micro}")
            return
        if self.recompute == "auto" and not self.recomputing and find_blocks(self.model):
            self._switch_recompute_on()
            self._say("out of memory with one sample; activation checkpointing is now on and the step is replayed")
            return
        raise self._give_up(size, trouble)

    def _switch_recompute_on(self) -> None:
        if self._compiled is not self.model and self.team is None:
            self._compiled = self.model  # a compiled graph would keep what recomputation means to forget
        recompute_blocks(self.model)
        self.recomputing = True

    def _give_up(self, size: int, trouble: _Trouble) -> OutOfMemory:
        where = f" in {trouble.place}" if trouble.place else ""
        helps = ["a smaller input (image size, sequence length)"]
        if not self.recomputing and find_blocks(self.model):
            helps.insert(0, "activation checkpointing (--recompute on)")
        if self.precision == "32-true":
            helps.insert(0, "half precision (--precision bf16-mixed)")
        if not self.separable:
            helps.insert(0, "a smaller --batch, since this loss cannot be split")
        return OutOfMemory(
            f"memory ran out{where} with {size} sample{'s' if size != 1 else ''} at a time: {trouble.what}",
            remedy=f"What would help: {'; '.join(helps)}; a smaller model",
        )

    def _try_larger(self, total: int) -> int | None:
        """After a quiet window, doubles the micro-batch for a try; the size to come back to if it fails."""
        if self.micro is None or self._quiet < self._window or not self._room_to_grow(total):
            return None
        before, self.micro, self._quiet = self.micro, 2 * self.micro, 0
        if self._largest is None and self.micro >= total:
            self.micro = None
        elif self._largest is not None:
            self.micro = min(self.micro, self._largest)
        return before

    def _room_to_grow(self, total: int) -> bool:
        assert self.micro is not None
        return self.micro < (total if self._largest is None else min(self._largest, total))

    @contextlib.contextmanager
    def _autocast(self) -> Iterator[None]:
        kind = _AUTOCAST[self.precision]
        with torch.autocast(self.device.type, dtype=kind, enabled=kind is not None):
            yield


_AUTOCAST = {"32-true": None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


@dataclass(frozen=True)
class _Trouble:
    """Why an attempt failed, in words: holding on to the exception would hold on to its tensors."""

    what: str
    place: Place | None


@dataclass
class _Sums:
    """What the micro-batches of a step add up to."""

    loss: Tensor
    count: Any
    num_micro: int
    divisor: Any = None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _at_least_one(count: Any) -> Any:
    """A count to divide by: a batch whose every target is masked gives gradient zero, not NaN."""
    return count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)


@torch.no_grad()
def _scale_gradients(parameters: list[nn.Parameter], factor: Tensor) -> None:
    gradients = [p.grad for p in parameters if p.grad is not None]
    for dtype in dict.fromkeys(g.dtype for g in gradients):
        same = [g for g in gradients if g.dtype == dtype]
        torch._foreach_mul_(same, factor.to(dtype))
