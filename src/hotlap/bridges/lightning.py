"""Exact, memory-safe steps under a Lightning Trainer.

>>> trainer = lightning.Trainer(callbacks=[HotlapCallback()])

Each batch is split as far as memory asks for, and a step that ran out of memory is undone and done again. Precision
plugins, gradient clipping, accumulation, hooks and logging stay Lightning's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from hotlap.base.errors import EnvironmentUnusable, UsageError
from hotlap.bridges.lightning_log import LogOnce, MetricStates, detached, join_outputs
from hotlap.bridges.passes import BridgeConfig, Passes, add_gradients, nothing, take_gradients
from hotlap.bridges.record import Journey
from hotlap.engine.mean_loss import Count
from hotlap.engine.split import num_samples
from hotlap.records.run import RunRecord
from hotlap.workload import Batch

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as missing:
    raise EnvironmentUnusable(
        f"this bridge cannot import Lightning ({missing})", remedy="Install it: pip install 'hotlap[lightning]'"
    ) from missing

STRATEGY = "SingleDeviceStrategy"


class HotlapCallback(Callback):
    """Protects the training steps of a Trainer and writes a record of the run."""

    def __init__(
        self,
        micro: int | None = None,
        *,
        count: Count = num_samples,
        recompute: Literal["auto", "on", "off"] = "auto",
        regrow_after: int = 200,
        runs: Path | str = "runs",
        name: str = "",
    ) -> None:
        """``count`` says what the loss of ``training_step`` is the mean over; the rest is described in BridgeConfig."""
        if micro is not None and micro < 1:
            raise UsageError(f"micro = {micro}", expected="at least one sample")
        self.config = BridgeConfig(
            micro=micro, recompute=recompute, regrow_after=regrow_after, runs=Path(runs), name=name
        )
        self.record: RunRecord | None = None
        """Of the last run; complete when it has ended."""
        self._count = count
        self._guard: _Guard | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            _check(trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        name = type(pl_module).__name__
        journey = Journey(self.config, name, "lightning", trainer.strategy.root_device)
        self._guard = _Guard(trainer, pl_module, self.config, self._count, journey)
        self.record = journey.record

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._close(trainer, "complete")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        status = "interrupted" if isinstance(exception, KeyboardInterrupt) else "failed"
        self._close(trainer, status, f"{type(exception).__name__}: {exception}")

    def _close(self, trainer: Trainer, status: str, why: str = "") -> None:
        guard, self._guard = self._guard, None
        if guard is None:
            return
        guard.close()
        self.record = guard.journey.finish(
            status,
            guard.passes.step,
            step=trainer.global_step,
            epoch=trainer.current_epoch,
            metrics={name: float(value) for name, value in trainer.callback_metrics.items()},
            why=why,
        )


def _check(trainer: Trainer, module: LightningModule) -> None:
    """Refuses what cannot be made exact, before anything is trained."""
    if not module.automatic_optimization:
        raise UsageError(
            f"automatic_optimization = False in {type(module).__name__}",
            expected="automatic optimization",
            remedy="A training_step that steps by itself can use hotlap.ExactStep",
        )
    strategy = type(trainer.strategy).__name__
    if strategy != STRATEGY:
        raise UsageError(
            f"strategy = {strategy}",
            expected=f"{STRATEGY}, one process on one device",
            remedy="When one of several processes runs out of memory, the others would wait for it forever; "
            "'hotlap train' under torchrun can share batches",
        )


class _HandBack(Exception):
    """A training step returned something other than a loss; Lightning knows what to do with it."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output


class _Guard:
    """Stands between a Trainer and its strategy while a fit lasts."""

    def __init__(
        self, trainer: Trainer, module: LightningModule, config: BridgeConfig, count: Count, journey: Journey
    ) -> None:
        self.trainer, self.module, self.journey, self._count = trainer, module, journey, count
        self.passes = Passes(module, config, journey.say)
        self._log, self._metrics = LogOnce(module), MetricStates(module)
        self._outputs: list[tuple[int, Any]] = []
        self._fresh: list[tuple[torch.nn.Parameter, Tensor]] = []
        strategy = trainer.strategy
        self._own_step: Callable[..., Any] = strategy.training_step
        self._own_backward: Callable[..., Any] = strategy.backward
        strategy.training_step, strategy.backward = self.training_step, self.backward

    def close(self) -> None:
        """Gives strategy and model back as they were."""
        for name in ("training_step", "backward"):
            delattr(self.trainer.strategy, name)
        self.passes.close()

    def training_step(self, batch: Batch, *rest: Any) -> Any:
        """Forward and backward pass; what is returned looks like a training step's output, but for its gradients."""
        self._metrics.remember()
        kept = [] if self._clears_gradients() else take_gradients(self.module)
        try:
            with self._log:
                result = self.passes.run(batch, self._part_of(num_samples(batch), rest), self._begin)
        except _HandBack as back:
            take_gradients(self.module)
            self._log.flush()
            return back.output
        finally:
            self._fresh = take_gradients(self.module)
            add_gradients(kept)
        self._log.flush()
        self.journey.add(result)
        return join_outputs(self._outputs)

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Puts the gradients in place, then lets Lightning go through the motions on a loss that leads nowhere."""
        fresh, self._fresh = self._fresh, []
        add_gradients(fresh)
        return self._own_backward(loss, *args, **kwargs)

    def _clears_gradients(self) -> bool:
        """Whether Lightning is about to forget the gradients that are there: keeping them would take memory."""
        stock = type(self.module).optimizer_zero_grad is LightningModule.optimizer_zero_grad
        return stock and self.trainer.fit_loop.batch_idx % self.trainer.accumulate_grad_batches == 0

    def _begin(self) -> None:
        self._outputs.clear()
        self._log.clear()
        self._metrics.restore()

    def _part_of(self, total: int, rest: tuple[Any, ...]) -> Callable[[Batch], tuple[Tensor, int]]:
        def part(batch: Batch) -> tuple[Tensor, int]:
            whole = num_samples(batch) == total
            num = 1 if whole else int(self._count(batch))
            if num == 0:
                return nothing(self.trainer.strategy.root_device)
            self._log.weight = num
            output = self._own_step(batch, *rest)
            loss = output.get("loss") if isinstance(output, Mapping) else output
            if not isinstance(loss, Tensor):
                raise _HandBack(output)
            self._outputs.append((num, detached(output)))
            loss = self._scaled(loss)
            return (loss, 1) if whole else (loss.double() * num, num)

        return part

    def _scaled(self, loss: Tensor) -> Tensor:
        """As Lightning scales it on its way to the backward pass."""
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        loss = loss / self.trainer.accumulate_grad_batches
        return loss if scaler is None else scaler.scale(loss)
