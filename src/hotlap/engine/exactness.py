"""Where a batch may not be split without changing the result, by name, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from hotlap.measure.dropout import KEYED_KINDS, KeyedDropout


@dataclass(frozen=True)
class Inexact:
    """One reason why micro-batches do not add up to the whole batch."""

    kind: str
    names: tuple[str, ...]
    why: str
    remedy: str

    def __str__(self) -> str:
        shown = ", ".join(self.names[:3]) + (f" and {len(self.names) - 3} more" if len(self.names) > 3 else "")
        return f"{self.kind} ({shown}): {self.why}. {self.remedy}."


def find_inexact(model: nn.Module, *, loss_is_separable: bool = True) -> list[Inexact]:
    """Everything in ``model`` as it stands (training mode or not) that couples the samples of a batch."""
    found = [_batch_norm(model), _sync_batch_norm(model), _inner_dropout(model), _other_dropout(model)]
    if not loss_is_separable:
        found.append(
            Inexact(
                "a loss that couples samples",
                ("the workload says loss_is_separable = False",),
                "the loss of a batch is not the sum of its samples' losses, so it is never split",
                "Lower the batch, or switch activation checkpointing on, if memory runs out",
            )
        )
    return [finding for finding in found if finding is not None]


def _named(model: nn.Module, kind: type | tuple[type, ...]) -> list[tuple[str, nn.Module]]:
    found: list[tuple[str, nn.Module]] = [(n, m) for n, m in model.named_modules() if isinstance(m, kind)]  # type: ignore[misc]
    return [(name or "the model itself", module) for name, module in found]


def _batch_norm(model: nn.Module) -> Inexact | None:
    names = [n for n, m in _named(model, _BatchNorm) if m.training and not isinstance(m, nn.SyncBatchNorm)]
    if not names:
        return None
    return Inexact(
        "BatchNorm in training mode",
        tuple(names),
        "it normalises over the micro-batch, so splitting changes the result a little",
        "For exact splits use GroupNorm or freeze it with .eval(); unsplit steps are exact",
    )


def _sync_batch_norm(model: nn.Module) -> Inexact | None:
    names = [n for n, m in _named(model, nn.SyncBatchNorm) if m.training]
    if not names:
        return None
    return Inexact(
        "SyncBatchNorm",
        tuple(names),
        "it talks to the other processes inside the forward pass, which hangs when one runs out of memory there",
        "Use GroupNorm, or BatchNorm with a larger batch on each device",
    )


def _inner_dropout(model: nn.Module) -> Inexact | None:
    kinds = (nn.RNNBase, nn.MultiheadAttention)
    names = [n for n, m in _named(model, kinds) if m.training and getattr(m, "dropout", 0) > 0]
    if not names:
        return None
    return Inexact(
        "dropout inside a recurrent or attention layer",
        tuple(names),
        "its masks are drawn where they cannot be tied to samples, so a split draws others",
        "Set that dropout to 0 and put nn.Dropout between the layers instead",
    )


def _other_dropout(model: nn.Module) -> Inexact | None:
    odd = [
        n
        for n, m in _named(model, (_DropoutNd, nn.RReLU))
        if m.training and not isinstance(m, (KeyedDropout, *KEYED_KINDS)) and getattr(m, "p", 1) > 0
    ]
    if not odd:
        return None
    return Inexact(
        "random layers other than nn.Dropout",
        tuple(odd),
        "their masks depend on the split",
        "Use nn.Dropout or nn.Dropout2d for exact splits",
    )
