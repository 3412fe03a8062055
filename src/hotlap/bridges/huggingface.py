"""Exact, memory-safe steps under a Hugging Face Trainer.

>>> trainer = transformers.Trainer(model, arguments, train_dataset=data)
>>> protect(trainer)
>>> trainer.train()

Each batch is split as far as memory asks for, and a step that ran out of memory is undone and done again. Token counts
(``num_items_in_batch``), mixed precision, accumulation, clipping and logging stay the Trainer's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hotlap.base.errors import EnvironmentUnusable, UsageError
from hotlap.bridges.passes import BridgeConfig, Passes, add_gradients, nothing, take_gradients
from hotlap.bridges.record import Journey
from hotlap.engine.mean_loss import Count
from hotlap.engine.split import num_samples
from hotlap.records.run import RunRecord
from hotlap.workload import Batch

try:
    from transformers import Trainer, TrainerCallback
except ImportError as missing:
    raise EnvironmentUnusable(
        f"this bridge cannot import transformers ({missing})", remedy="Install it: pip install 'hotlap[huggingface]'"
    ) from missing

IGNORED = -100
"""The label that transformers leaves out of a loss."""


def protect(
    trainer: Trainer,
    *,
    micro: int | None = None,
    count: Count | None = None,
    recompute: Literal["auto", "on", "off"] = "auto",
    regrow_after: int = 200,
    runs: Path | str = "runs",
    name: str = "",
) -> HotlapCallback:
    """Makes the training steps of ``trainer`` exact and safe; the callback, already added, that holds the record.

    ``count`` says what a model's loss is the mean over, where the model does not divide by ``num_items_in_batch``; by
    default the labels that are not -100, or the samples if there are no such labels. The rest: see BridgeConfig.
    """
    if micro is not None and micro < 1:
        raise UsageError(f"micro = {micro}", expected="at least one sample")
    _check(trainer)
    config = BridgeConfig(micro=micro, recompute=recompute, regrow_after=regrow_after, runs=Path(runs), name=name)
    callback = HotlapCallback(trainer, config, count)
    trainer.add_callback(callback)
    return callback


def _check(trainer: Trainer) -> None:
    """Refuses what cannot be made exact, before anything is trained."""
    kind = trainer.accelerator.distributed_type.value
    for what, allowed in (
        (f"distributed_type = {kind}", kind == "NO"),
        (f"n_gpu = {trainer.args.n_gpu}", trainer.args.n_gpu <= 1),
        (f"world_size = {trainer.args.world_size}", trainer.args.world_size == 1),
    ):
        if not allowed:
            raise UsageError(
                what,
                expected="one process on one device",
                remedy="When one of several processes runs out of memory, the others would wait for it forever; "
                "set CUDA_VISIBLE_DEVICES to one device, or use 'hotlap train' under torchrun",
            )
    if any(isinstance(callback, HotlapCallback) for callback in trainer.callback_handler.callbacks):
        raise UsageError(f"this {type(trainer).__name__} is already protected", expected="one call of protect()")


class HotlapCallback(TrainerCallback):
    """Stands between a Trainer and its training step; writes a record of the run. Made by ``protect``."""

    def __init__(self, trainer: Trainer, config: BridgeConfig, count: Count | None) -> None:
        self.trainer, self.config, self._count = trainer, config, count
        self.record: RunRecord | None = None
        """Of the last run; complete when it has ended."""
        self.passes: Passes | None = None
        self._journey: Journey | None = None
        self._adds_up: bool | None = None
        self._returned: list[Tensor] = []
        self._own_step: Callable[..., Tensor] = trainer.training_step
        self._own_train: Callable[..., Any] = trainer.train
        trainer.training_step, trainer.train = self.training_step, self.train

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's own, with a record of how it ended."""
        try:
            return self._own_train(*args, **kwargs)
        except BaseException as error:
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            self._close(status, f"{type(error).__name__}: {error}")
            raise

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = self.trainer.model
        self._journey = Journey(self.config, type(model).__name__, "transformers", args.device)
        self.record = self._journey.record
        self.passes = Passes(model, self.config, self._journey.say)
        for name in _hidden_dropout(model):
            self._journey.say(
                f"a split step would not be exact: {name} in the model's configuration drops inside a function, where "
                "masks cannot be tied to samples. Set it to 0 for exact splits."
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._close("complete")

    def _close(self, status: str, why: str = "") -> None:
        passes, self.passes = self.passes, None
        if passes is None:
            return
        assert self._journey is not None
        passes.close()
        state = self.trainer.state
        logged = [item for row in state.log_history for item in row.items() if item[0] not in ("step", "epoch")]
        self.record = self._journey.finish(
            status,
            passes.step,
            step=state.global_step,
            epoch=int(state.epoch or 0),
            metrics={name: float(value) for name, value in logged if isinstance(value, (int, float))},
            why=why,
        )

    def training_step(self, model: nn.Module, inputs: Batch, num_items_in_batch: Any = None) -> Tensor:
        """The Trainer's own, in parts: leaves gradients, returns the loss of the whole batch."""
        if self.passes is None or self._journey is None:  # called by hand, outside a training
            return self._own_step(model, inputs, num_items_in_batch)
        earlier = take_gradients(self.passes.model)
        try:
            part = self._part_of(model, num_samples(inputs), num_items_in_batch)
            result = self.passes.run(inputs, part, self._returned.clear)
        finally:
            add_gradients(earlier)
        self._journey.add(result)
        return self._loss(result.count)

    def _loss(self, count: Any) -> Tensor:
        """What the Trainer would have returned for the whole batch."""
        if len(self._returned) == 1:
            return self._returned[0]
        total = torch.stack([loss.double() for loss in self._returned]).sum()
        return (total / max(int(count), 1)).to(self._returned[0].dtype)

    def _part_of(self, model: nn.Module, total: int, num_items: Any) -> Callable[[Batch], tuple[Tensor, int]]:
        def part(batch: Batch) -> tuple[Tensor, int]:
            if num_samples(batch) == total:
                return self._forward(model, batch, num_items, 1), 1
            if num_items is not None and self._divides_by(model, batch, num_items):
                # Parts are shares of the batch's loss already; their sizes only have to add up to its size.
                return self._forward(model, batch, num_items, total), num_samples(batch)
            num = int(self._default_count(batch) if self._count is None else self._count(batch))
            if num == 0:
                return nothing(self.trainer.args.device)
            return self._forward(model, batch, num_items, num), num

        return part

    def _forward(self, model: nn.Module, batch: Batch, num_items: Any, weight: int) -> Tensor:
        """The loss of a part times ``weight``, scaled as accelerate does on its way to the backward pass."""
        accelerator, losses = self.trainer.accelerator, []

        def backward(loss: Tensor, **kwargs: Any) -> None:
            if kwargs:
                raise UsageError(f"optim = {self.trainer.args.optim}", expected="an optimizer with a step of its own")
            losses.append(loss)

        accelerator.backward = backward
        try:
            returned = self._own_step(model, dict(batch) if isinstance(batch, Mapping) else batch, num_items)
        finally:
            del accelerator.backward
        if len(losses) != 1:
            raise UsageError(
                f"{type(self.trainer).__name__}.training_step called accelerator.backward {len(losses)} times",
                expected="once",
            )
        loss = losses[0] / accelerator.gradient_accumulation_steps
        if accelerator.scaler is not None:
            loss = accelerator.scaler.scale(loss)
        if weight == 1:
            self._returned.append(returned.detach())
            return loss
        self._returned.append(returned.detach().double() * weight)
        return loss.double() * weight

    def _default_count(self, batch: Batch) -> Any:
        labels = batch.get("labels") if isinstance(batch, Mapping) else None
        if not isinstance(labels, Tensor) or labels.is_floating_point():
            return num_samples(batch)
        if getattr(self.trainer, "_loss_shifts_labels", False):
            labels = labels[..., 1:]
        return (labels != IGNORED).sum()

    def _divides_by(self, model: nn.Module, batch: Batch, num_items: Any) -> bool:
        """Whether the loss is a sum over ``num_items_in_batch``. Many models take that number and ignore it."""
        if self._adds_up is None:
            one, half = (self._probe(model, batch, num_items * times) for times in (1, 2))
            if not (math.isfinite(one) and one != 0):
                return True
            halves, same = (math.isclose(half * times, one, rel_tol=0.01) for times in (2, 1))
            if not halves and not same:
                raise UsageError(
                    f"the loss of {type(self.trainer.model).__name__} is {one:.6g} with num_items_in_batch = "
                    f"{int(num_items)} and {half:.6g} with twice that",
                    expected="half of it, or no change",
                    remedy="A loss that is neither a sum over that number nor a mean cannot be split",
                )
            self._adds_up = halves
        return self._adds_up

    @torch.no_grad()
    def _probe(self, model: nn.Module, batch: Batch, num_items: Any) -> float:
        """The loss without dropout; nothing that a training step changes is touched."""
        trainer = self.trainer
        model.eval()
        try:
            inputs = trainer._prepare_inputs(dict(batch))
            with trainer.compute_loss_context_manager():
                return float(trainer.compute_loss(model, inputs, num_items_in_batch=num_items))
        finally:
            model.train()


def _hidden_dropout(model: nn.Module) -> list[str]:
    """Settings of a model by which it drops without a dropout layer, as 'name = value'."""
    config: Any = getattr(model, "config", None)
    settings = config.to_dict() if hasattr(config, "to_dict") else {}
    found = [
        (name, value)
        for name, value in settings.items()
        if "layerdrop" in name or ("drop" in name and ("attn" in name or "attention" in name))
    ]
    return [f"{name} = {value}" for name, value in found if isinstance(value, float) and value > 0]
