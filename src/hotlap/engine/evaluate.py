"""Loss and scores on held-out data, in pieces that fit where a training step's fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import Subset

from hotlap.base.errors import DataError, TargetError
from hotlap.device.memory import is_out_of_memory, release_memory
from hotlap.engine.parts import Parts
from hotlap.engine.split import micro_ranges, num_samples, take, to_device
from hotlap.workload import Batch


def never() -> bool:
    return False


@torch.no_grad()
def evaluate(parts: Parts, *, should_stop: Callable[[], bool] = never) -> dict[str, float] | None:
    """The mean loss and the workload's own metrics, of the averaged model where there is one; None when told to stop.

    It is done in float32 and in evaluation mode; the model is in training mode afterwards. Recorded passes are given up
    where it does not fit beside them.
    """
    assert parts.evaluation is not None and parts.held_out is not None
    model = parts.ema.module if parts.ema is not None else parts.model
    model.eval()
    try:
        while True:
            try:
                return _evaluated(parts, model, should_stop)
            except Exception as error:
                if not is_out_of_memory(error) or not parts.step.release_graphs():
                    raise
            release_memory()
    finally:
        parts.model.train()


def _evaluated(parts: Parts, model: nn.Module, should_stop: Callable[[], bool]) -> dict[str, float] | None:
    assert parts.evaluation is not None
    loss = _mean_loss(parts, model, should_stop)
    if loss is None:
        return None
    data: Any = parts.held_out
    num, bad = parts.evaluation.num_samples, parts.evaluation.bad_samples
    if len(bad) == num:
        raise DataError(f"all {num} samples of the evaluation data are bad", remedy="bad_samples.txt says why")
    if bad:
        data = Subset(data, [i for i in range(len(data)) if i not in bad])
    return {"loss": loss, **_checked(parts.workload.metrics(model, data, parts.device), parts.workload.name)}


def _checked(scores: Any, name: str) -> dict[str, float]:
    """The scores as numbers, if they are some."""
    try:
        return {str(key): float(value) for key, value in scores.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise TargetError(
            f"metrics() of {name!r} returned {str(scores)[:80]!r}", expected="a dict of names to numbers"
        ) from error


def _mean_loss(parts: Parts, model: nn.Module, should_stop: Callable[[], bool]) -> float | None:
    total, count, size = 0.0, 0.0, parts.step.micro
    assert parts.evaluation is not None
    for loaded in parts.evaluation.epoch(0):
        if should_stop():
            return None
        if loaded.batch is not None:
            part, num, size = _sum_in_pieces(parts, model, loaded.batch, size)
            total, count = total + part, count + num
    return total / max(count, 1.0)


def _sum_in_pieces(parts: Parts, model: nn.Module, batch: Batch, size: int | None) -> tuple[float, float, int | None]:
    """The summed loss of one batch, its count, and the size of the pieces that fitted; halved when memory runs out."""
    whole = num_samples(batch)
    while True:
        piece = whole if size is None or not parts.workload.loss_is_separable else min(size, whole)
        total = count = 0.0
        try:
            for begin, end in micro_ranges(whole, piece):
                part, num = parts.workload.loss(model, to_device(take(batch, begin, end), parts.device))
                total, count = total + float(part), count + float(num)
        except Exception as error:
            if not is_out_of_memory(error) or piece == 1 or not parts.workload.loss_is_separable:
                raise
        else:
            return total, count, size
        # Outside the except block, where the traceback would keep the failed piece's tensors alive.
        size = -(-piece // 2)
        release_memory()
