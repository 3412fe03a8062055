"""Where a batch may not be split without changing the result, by name, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from hotlap.measure.dropout import KEYED_KINDS, KeyedDropout

_RANDOM = (_DropoutNd, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)
_RANDOM_BY_NAME = ("StochasticDepth", "DropPath")
"""Layers of torchvision and timm, and of models that have copied them."""


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


NOT_SEPARABLE = Inexact(
    "a loss that couples samples",
    ("the workload says loss_is_separable = False",),
    "the loss of a batch is not the sum of its samples' losses, so it is never split",
    "Lower the batch, or switch activation checkpointing on, if memory runs out",
)
DRAWS = Inexact(
    "random numbers drawn by the forward pass",
    ("seen in a step",),
    "they come from a shared stream, so a split gives them to other samples",
    "Use nn.Dropout layers in place of torch.nn.functional.dropout and of draws of your own",
)


def find_inexact(model: nn.Module, *, loss_is_separable: bool = True, draws: bool = False) -> list[Inexact]:
    """Everything in ``model`` as it stands (training mode or not) that couples the samples of a batch.

    ``draws`` says that its forward pass was seen to draw random numbers; told only where no layer explains it.
    """
    named = [(name or "the model itself", module) for name, module in model.named_modules()]
    found = [_batch_norm(named), _sync_batch_norm(named), _running_statistics(named), _half_parameters(model)]
    random = [_inner_dropout(named), _other_random(named)]
    found += [*random, _odd_dropout(named)]
    found += [DRAWS if draws and not any(random) else None, None if loss_is_separable else NOT_SEPARABLE]
    return [finding for finding in found if finding is not None]


_Named = list[tuple[str, nn.Module]]


def _finding(kind: str, names: list[str], why: str, remedy: str) -> Inexact | None:
    return Inexact(kind, tuple(names), why, remedy) if names else None


def _batch_norm(named: _Named) -> Inexact | None:
    return _finding(
        "BatchNorm in training mode",
        [n for n, m in named if isinstance(m, _BatchNorm) and m.training and not isinstance(m, nn.SyncBatchNorm)],
        "it normalises over the micro-batch, so splitting changes the result a little",
        "For exact splits use GroupNorm, or give the model a train() that leaves it in eval(); unsplit steps are exact",
    )


def _sync_batch_norm(named: _Named) -> Inexact | None:
    return _finding(
        "SyncBatchNorm",
        [n for n, m in named if isinstance(m, nn.SyncBatchNorm) and m.training],
        "it talks to the other processes inside the forward pass, which hangs when one runs out of memory there",
        "Use GroupNorm, or BatchNorm with a larger batch on each device",
    )


def _running_statistics(named: _Named) -> Inexact | None:
    return _finding(
        "running state that every forward pass moves on",
        [n for n, m in named if m.training and _moves_on(m)],
        "a split step has more forward passes, so the state ends elsewhere",
        "Use InstanceNorm without running statistics, and weight_norm in place of spectral_norm",
    )


def _moves_on(module: nn.Module) -> bool:
    if isinstance(module, _InstanceNorm):
        return module.track_running_stats
    hooks = module._forward_pre_hooks.values()
    return isinstance(module, _SpectralNorm) or any(isinstance(hook, SpectralNorm) for hook in hooks)


def _half_parameters(model: nn.Module) -> Inexact | None:
    half = (torch.float16, torch.bfloat16)
    return _finding(
        "parameters in half precision",
        [n for n, p in model.named_parameters() if p.requires_grad and p.dtype in half],
        "their gradients are added up in that precision, which rounds after every micro-batch",
        "Keep the parameters in float32 and use --precision bf16-mixed",
    )


def _inner_dropout(named: _Named) -> Inexact | None:
    kinds = (nn.RNNBase, nn.MultiheadAttention)
    return _finding(
        "dropout inside a recurrent or attention layer",
        [n for n, m in named if isinstance(m, kinds) and m.training and _draws_inside(m)],
        "its masks are drawn where they cannot be tied to samples, so a split draws others",
        "Set that dropout to 0 and put nn.Dropout between the layers instead",
    )


def _draws_inside(layer: nn.RNNBase | nn.MultiheadAttention) -> bool:
    between = layer.num_layers > 1 if isinstance(layer, nn.RNNBase) else True
    return layer.dropout > 0 and between


def _other_random(named: _Named) -> Inexact | None:
    return _finding(
        "random layers other than nn.Dropout",
        [name for name, module in named if module.training and _is_random(module)],
        "their masks depend on the split",
        "Use nn.Dropout or nn.Dropout2d for exact splits",
    )


def _is_random(module: nn.Module) -> bool:
    known = isinstance(module, _RANDOM) and not isinstance(module, KeyedDropout) and type(module) not in KEYED_KINDS
    if not known and type(module).__name__ not in _RANDOM_BY_NAME:
        return False
    shares: Iterator[float | None] = (getattr(module, name, None) for name in ("p", "drop_prob"))
    return next((share for share in shares if share is not None), 1.0) > 0


def _odd_dropout(named: _Named) -> Inexact | None:
    return _finding(
        "dropout where the first dimension does not go by sample",
        [name for name, module in named if isinstance(module, KeyedDropout) and module.is_odd],
        "its masks cannot be tied to samples, so a split draws others",
        "Keep samples in the first dimension (batch_first=True)",
    )
