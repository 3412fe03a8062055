"""One training step on one effective batch: exact however it is split, and replayed whole when memory runs out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hotlap.base.errors import OutOfMemory, UsageError
from hotlap.device.memory import is_out_of_memory, release_memory
from hotlap.engine.exactness import DRAWS, Inexact, find_inexact
from hotlap.engine.graphs import GraphedPasses, Passed
from hotlap.engine.split import micro_ranges, num_samples, take
from hotlap.engine.step_result import StepResult
from hotlap.engine.sums import BackwardSeed, Sums, drop_gradients, not_zero, power_of_two, scale_gradients
from hotlap.engine.team import Team
from hotlap.engine.trace import Tracer, Trouble, place_of
from hotlap.engine.undo import RandomState, StepStart, first_line
from hotlap.engine.update import FIRST_STEPS, StepLost, Update, insist
from hotlap.measure.dropout import key_dropout
from hotlap.measure.recompute import find_blocks, recompute_blocks
from hotlap.workload import Batch, sum_and_count

__all__ = ["ExactStep", "Loss", "Say", "StepLost", "StepResult", "Team"]

Loss = Callable[[nn.Module, Batch], "tuple[Tensor, Tensor | int]"]
Say = Callable[[str], None]


def _check_settings(micro: int | None, precision: str, clip_norm: float | None, recompute: str) -> None:
    if micro is not None and micro < 1:
        raise UsageError(f"micro = {micro}", expected="at least one sample")
    if precision not in _AUTOCAST:
        raise UsageError(f"precision = {precision!r}", expected=", ".join(_AUTOCAST))
    if clip_norm is not None and not clip_norm > 0:  # torch would turn gradients round
        raise UsageError(f"clip_norm = {clip_norm}", expected="a positive length")
    if recompute not in ("auto", "on", "off"):
        raise UsageError(f"recompute = {recompute!r}", expected="auto, on or off")


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
        graph: bool = False,
        team: Team | None = None,
        say: Say = lambda text: None,
    ) -> None:
        """``compiled`` is what is called in place of ``model``: the same module, compiled or wrapped.

        ``micro`` None begins with the whole batch. ``recompute`` "auto" switches activation checkpointing on as the
        last step before giving up. ``regrow_after`` quiet steps, a micro-batch twice as large is tried again.
        ``graph`` records the passes over parts of the usual sizes as CUDA graphs and replays them.
        """
        _check_settings(micro, precision, clip_norm, recompute)
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self.precision, self.clip_norm, self.separable, self.team = precision, clip_norm, separable, team
        self.scaler = scaler
        if scaler is None and precision == "16-mixed":
            self.scaler = torch.amp.GradScaler(self.device.type)
        if self.scaler is not None:
            self.scaler.scale(torch.zeros((), device=self.device))  # its state is made now, not in a step that may fail
        self.key = key_dropout(model, self.device)
        self.recompute = recompute
        self.recomputing = False
        self._compiled = compiled if compiled is not None else model
        self._say = say
        self.micro: int | None = micro
        self._least, self._largest = 1, micro
        self._window, self._quiet = regrow_after, 0
        self._start = StepStart(model, self.device)
        self._update = Update(optimizer, self.scaler, self.device, say, self.release_graphs)
        self._looks, self._draws = FIRST_STEPS, False
        self._seed = BackwardSeed()
        self._drawn = torch.empty((), dtype=torch.int64, device="cpu")
        self._unit: float | None = None  # what split steps divide by until the true count is known
        self.graphs: GraphedPasses | None = None
        if graph:
            is_compiled = self._compiled is not model
            self.graphs = GraphedPasses(model, optimizer, self.device, self.key, is_compiled=is_compiled, say=say)
            if team is not None:
                self.graphs.refuse("several processes share gradients")
        if recompute == "on":
            self._switch_recompute_on()

    @property
    def num_replays(self) -> int:
        """Passes that were replays of recorded ones."""
        return self.graphs.num_replays if self.graphs is not None else 0

    def inexact(self) -> list[Inexact]:
        """What would make a split step differ from a whole one, by name; some of it shows only after a step."""
        return find_inexact(self.model, loss_is_separable=self.separable, draws=self._draws)

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
        self._update.be_careful()

    def release_graphs(self) -> bool:
        """Gives the memory of recorded passes back, which are recorded again later; whether there were any."""
        return self.graphs is not None and self.graphs.release()

    def __call__(self, batch: Batch | None, *, first_sample: int = 0) -> StepResult:
        """Trains on one effective batch; ``first_sample`` is its first sample's place where processes share a batch.

        Raises OutOfMemory with everything as it was before the step, or StepLost.
        """
        result = self.gradients(batch, first_sample=first_sample)
        try:
            self._update()
        except OutOfMemory as error:
            if not isinstance(error, StepLost):
                self._recover()
            raise
        return result

    def gradients(self, batch: Batch | None, *, first_sample: int = 0) -> StepResult:
        """All of a step but the optimizer's part, for callers that take it themselves: fresh gradients."""
        total = num_samples(batch) if batch is not None else 0
        if total == 0 and self.team is None:
            raise UsageError("a training step got a batch of 0 samples", expected="at least one")
        grown_from = self._try_larger(total)
        self._start.forget()
        num_splits, failed_at = 0, 0.0
        trouble: Trouble | None = None
        done: StepResult | None
        while True:
            done, began = None, time.perf_counter()
            try:
                done = self._gradients(batch, total, first_sample, traced=num_splits > 0 and self._is_last(total))
            except Exception as error:
                if is_out_of_memory(error):
                    trouble = Trouble(first_line(error), place_of(error, self.model))
                elif num_splits == 0 or not self._is_too_small(error):
                    raise
            # Outside the except block: there the traceback would keep every tensor of the failed step alive.
            if done is not None:
                break
            failed_at = failed_at or time.perf_counter()
            num_splits += 1
            if self._recover() and grown_from is None:
                self._say("out of memory beside recorded passes; they are given up, and the step is replayed")
                self._update.be_careful()
            else:
                trouble = trouble or Trouble("another process ran out of memory", None)
                self._split_further(total, trouble, grown_from, num_splits)
            grown_from = None
        if not num_splits:
            self._quiet += 1
            return done
        self._quiet = 0
        return replace(done, num_splits=num_splits, recovery_s=began - failed_at)

    def _size(self, total: int) -> int:
        return total if self.micro is None else min(self.micro, total)

    def _is_last(self, total: int) -> bool:
        """Whether there is no smaller split, so that a failure may be the end and its place is worth knowing."""
        return self._compiled is self.model and (self._size(total) <= self._least or not self.separable)

    def _is_too_small(self, error: Exception) -> bool:
        """Whether BatchNorm refused the last split, with one value for each channel: two samples are then the least."""
        if self.team is not None or self._least > 1 or "more than 1 value per channel" not in str(error):
            return False
        self._least = 2
        return True

    def _gradients(self, batch: Batch | None, total: int, first_sample: int, *, traced: bool) -> StepResult | None:
        """Gradients with the split in force; None when another process of the team ran out of memory."""
        if self.team is None:
            return self._finished(self._backward(batch, total, first_sample, traced=traced), total)
        failed: Exception | None = None
        sums = None
        try:
            sums = self._backward(batch, total, first_sample, traced=traced)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failed = error
        if self.team.any_failed(failed is not None):
            if failed is not None:
                raise failed
            return None
        assert sums is not None
        try:
            return self._finished(sums, total)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise StepLost(f"memory ran out after the processes had shared gradients: {first_line(error)}") from error

    def _finished(self, sums: Sums, total: int) -> StepResult:
        """Divides, unscales and clips what the passes have left."""
        loss, count = self._normalise(sums)
        norm = self._unscale_and_clip()
        if self.graphs is not None and sums.num_micro > 1 and self._unit is None:
            self._unit = power_of_two(float(count))
        num, largest = sums.num_micro, sums.largest
        return StepResult(loss=loss, count=count, num_samples=total, micro=largest, num_micro=num, grad_norm=norm)

    def _backward(self, batch: Batch | None, total: int, first_sample: int, *, traced: bool) -> Sums:
        """Gradients of the summed loss over a provisional count, with the sum and its true count."""
        if traced:
            with Tracer(self.model):
                return self._backward(batch, total, first_sample, traced=False)
        self._begin()
        random = RandomState(self.device) if self._looks else None
        whole = self.team is None and total <= self._size(total)
        sums = self._one_part(batch, total, first_sample) if whole else self._parts(batch, total, first_sample)
        if random is not None:
            self._look_for_draws(random)
        return sums

    def _begin(self) -> None:
        """What comes before the passes of every attempt."""
        self._start.remember(self.scaler)
        drop_gradients(self.optimizer)
        if self.key is not None:
            self.key.set_step(int(self._drawn.random_(-(2**31), 2**31)))

    def _one_part(self, batch: Batch, total: int, first_sample: int) -> Sums:
        """The passes over a batch that is not split, which is what nearly all steps are."""
        self._begin_graphs(1)
        if self.key is not None:
            self.key.set_part(first_sample, total)
        passed = self._pass(batch) if self.graphs is None else self.graphs(batch, self._pass)
        return Sums(num_micro=1, largest=total, count=passed.num, mean=passed.mean)

    def _parts(self, batch: Batch | None, total: int, first_sample: int) -> Sums:
        """The passes over one part after the other."""
        ranges = micro_ranges(total, self._size(total)) if total else []
        largest = max((end - begin for begin, end in ranges), default=0)
        sums = Sums(num_micro=len(ranges), largest=largest, divisor=self._begin_graphs(len(ranges)))
        for begin, end in ranges:
            if self.key is not None:
                self.key.set_part(first_sample + begin, end - begin)
            run = partial(self._pass, divisor=sums.divisor, share=total / (end - begin))
            part = take(batch, begin, end) if len(ranges) > 1 else batch
            passed = run(part) if self.graphs is None else self.graphs(part, run)
            sums.divisor = passed.divisor
            sums.add(passed.loss, passed.num)
        return sums

    def _begin_graphs(self, num_parts: int) -> float | None:
        """What parts of this step divide by, if it is fixed: a recording of one of several cannot follow it."""
        if self.graphs is not None:
            self.graphs.begin(adds=num_parts > 1)
            self._update.set_aside(self.graphs.aside_bytes)
        return self._unit if num_parts > 1 or self.team is not None else None

    def _pass(self, part: Batch, *, divisor: Any = None, share: float = 1.0) -> Passed:
        """Forward and backward pass over a part; ``share`` is how many of its size would make the whole batch."""
        loss, count = sum_and_count(self._loss_of(part))
        if isinstance(count, Tensor) and count.requires_grad:
            count = count.detach()
        if divisor is None:
            # The true count is known only after the last part. One of about its size, drawn from the first part,
            # keeps half-precision gradients in range until then; with a single part it is the true one.
            divisor = not_zero(count) * share if share > 1 else not_zero(count)
        summed = loss.detach()
        # What a recording reads must never be made anew, and what is not one number is left to autograd to refuse.
        if self.scaler is None and self.graphs is None and loss.ndim == 0 == getattr(divisor, "ndim", 0):
            mean = summed / divisor
            loss.backward(self._seed(loss, mean, divisor))
            return Passed(summed, count, divisor, mean)
        scaled = loss / divisor
        (scaled if self.scaler is None else self.scaler.scale(scaled)).backward()
        return Passed(summed, count, divisor, scaled.detach())

    def _loss_of(self, part: Batch) -> tuple[Tensor, Tensor | int]:
        kind = _AUTOCAST[self.precision]
        if kind is None and not torch.is_autocast_enabled(self.device.type):
            return self.loss(self._compiled, part)  # every step comes here; switching off what is off takes time
        with torch.autocast(self.device.type, dtype=kind, enabled=kind is not None):
            return self.loss(self._compiled, part)

    def _look_for_draws(self, before: RandomState) -> None:
        self._looks -= 1
        if before.is_now() or self._draws:
            return
        self._draws = True
        if DRAWS in self.inexact():
            self._say(f"a split step would not be exact: {DRAWS}")

    def _normalise(self, sums: Sums) -> tuple[Tensor, Any]:
        """Adds up over the team and divides once by the true count; the mean loss and that count."""
        if self.team is None and sums.num_micro == 1:  # as in a loop without any splitting, to the last bit
            assert sums.mean is not None
            return sums.mean, sums.count
        divisor = self._in_double(1 if sums.divisor is None else sums.divisor)
        total, count = self._in_double(sums.loss), self._in_double(sums.count)
        if self.team is None:
            scale_gradients(self._parameters(), divisor / not_zero(count))
            return (total / not_zero(count)).to(sums.dtype), sums.count
        scale_gradients(self._parameters(), divisor)  # divisors differ between processes; each takes its own out
        total, count = self.team.total(torch.stack([total, count]))
        self.team.sum_gradients(self._parameters())
        scale_gradients(self._parameters(), 1 / not_zero(count))
        return total / not_zero(count), count

    def _in_double(self, value: Tensor | float) -> Tensor:
        if isinstance(value, Tensor):
            return value.to(self.device, torch.float64)
        return torch.full((), value, dtype=torch.float64, device=self.device)

    def _parameters(self) -> list[nn.Parameter]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def _unscale_and_clip(self) -> Tensor | None:
        """Here, where all of it can be repeated, so that the update only steps."""
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self.clip_norm is None:
            return None
        return torch.nn.utils.clip_grad_norm_(self._parameters(), self.clip_norm)

    def _recover(self) -> bool:
        """Everything as it was when the step began; whether recorded passes held memory, which they have given up."""
        drop_gradients(self.optimizer)
        held = self.release_graphs()
        release_memory()
        insist(lambda: self._start.restore(self.scaler), self.device, "the step's start was being restored")
        return held

    def _split_further(self, total: int, trouble: Trouble, grown_from: int | None, num_splits: int) -> None:
        """A smaller split for the next attempt; raises when there is none."""
        size = max(self._size(total), self._least)
        if self.team is not None:
            size = -self.team.smallest(-size)
        self._update.be_careful()
        self._quiet = 0
        if grown_from is not None:  # only a try: back to what works, and wait longer before the next
            self.micro, self._window = grown_from, 2 * self._window
            return
        if size > self._least and self.separable:
            self.micro = -(-size // 2)
            self._say(f"out of memory with {size} samples; the step is replayed in micro-batches of {self.micro}")
            return
        if self.micro is not None:
            self.micro = max(self.micro, self._least)
        if self.recompute == "auto" and not self.recomputing and find_blocks(self.model):
            self._switch_recompute_on()
            self._say(f"out of memory with {_samples(size)}; activation checkpointing is now on, the step is replayed")
            return
        if num_splits > 1:
            raise self._give_up(size, trouble)
        self._say(f"out of memory with {_samples(size)}; the step is replayed once with the allocator's cache emptied")

    def _switch_recompute_on(self) -> None:
        if self._compiled is not self.model and self.team is None:
            self._compiled = self.model  # a compiled graph would keep what recomputation means to forget
            self._say("activation checkpointing is on, so the model is no longer compiled")
        if self.graphs is not None:
            self.graphs.refuse("activation checkpointing is on")
        recompute_blocks(self.model)
        self.recomputing = True

    def _give_up(self, size: int, trouble: Trouble) -> OutOfMemory:
        where = f" in {trouble.place}" if trouble.place else ""
        helps = ["a smaller input (image size, sequence length)"]
        if not self.recomputing and find_blocks(self.model):
            helps.insert(0, "activation checkpointing (--recompute on)")
        if self.precision == "32-true":
            helps.insert(0, "half precision (--precision bf16-mixed)")
        if not self.separable:
            helps.insert(0, "a smaller --batch, since this loss cannot be split")
        return OutOfMemory(
            f"memory ran out{where} with {_samples(size)} at a time: {trouble.what}",
            remedy=f"What would help: {'; '.join(helps)}; a smaller model",
        )

    def _try_larger(self, total: int) -> int | None:
        """After a quiet window, doubles the micro-batch for a try; the size to come back to if it fails."""
        if self.micro is None or self._quiet < self._window:
            return None
        if self.team is not None:
            total = -self.team.smallest(-total)  # all ask in the same step, since all count the same quiet steps
        self._quiet = 0
        before, most = self.micro, total if self._largest is None else min(self._largest, total)
        if before >= most:
            return None
        self.micro = min(2 * before, most)
        return before


_AUTOCAST = {"32-true": None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


def _samples(num: int) -> str:
    return f"{num} sample{'s' if num != 1 else ''}"
