"""The protocol everything turns on: what a model must say to be measured, tuned, trained and served."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hotlap.base.errors import DataError, TargetError, UsageError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.utils.data import Dataset

Batch = Any
"""A tensor, or a (nested) dict, list or tuple of tensors; its first tensor's first dimension counts the samples."""


class BadSample(DataError):
    """A sample cannot be read; a dataset raises it, and whoever loads decides whether to stop or to go on without."""

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(
            f"bad sample {where}: {reason}", remedy="Repair or remove it, or go on without with --on-bad-sample skip"
        )

    def __reduce__(self) -> tuple[type[BadSample], tuple[str, str]]:
        return type(self), (self.where, self.reason)  # it crosses from a loader's process to the trainer's


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """One task-level comparison of two outputs, for the numeric gate."""

    name: str
    value: float
    at_least: float

    @property
    def passed(self) -> bool:
        return self.value >= self.at_least


UNDECIDED = 0.05
"""A lead of the best class smaller than this share of the typical score is no decision: rounding may turn it."""


def decided(scores: Tensor) -> Tensor:  # [n, C, ...] -> [n, ...] bool
    """Where class scores choose clearly: the best class leads by more than UNDECIDED times the scores' RMS.

    The gate runs on fresh weights, whose scores often tie; two right answers may then choose differently.
    """
    best = scores.topk(2, dim=1).values
    return best[:, 0] - best[:, 1] > UNDECIDED * scores.square().mean().sqrt()


def same_class(out: Tensor, ref: Tensor) -> list[Agreement]:  # [n, C, ...] each
    """The share of the reference's clear choices that the output repeats; nothing where none is clear."""
    clear = decided(ref)
    if not bool(clear.any()):
        return []
    same = (out.argmax(1) == ref.argmax(1))[clear].double().mean().item()
    return [Agreement(name="same class", value=same, at_least=0.99)]


class Workload:
    """A model with the data and the loss that make it work.

    Only the first three methods must be given. Everything random comes from the generator handed in, so that every arm
    of a comparison sees the same numbers; build_model draws its weights from torch's global generator, which the
    caller seeds.
    """

    name: str = "workload"
    summary: str = ""
    default_batch: int = 16
    loss_is_separable: bool = True
    """Whether the loss of a batch is the sum of the losses of its samples, so that it may be split."""

    def build_model(self) -> nn.Module:
        """The model, in float32 on the CPU, with fresh weights."""
        raise TargetError(f"workload {self.name!r} does not say how to build its model", remedy="Give it build_model()")

    def make_batch(self, n: int, device: torch.device, generator: torch.Generator) -> Batch:
        """``n`` samples on ``device``; the (CPU) generator alone decides what they are."""
        raise TargetError(f"workload {self.name!r} does not say how to make a batch", remedy="Give it make_batch()")

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | int]:
        """The summed loss of a batch, differentiable, and the count (samples, tokens, pixels) that makes it a mean."""
        raise TargetError(f"workload {self.name!r} has no loss", remedy="Give it loss(model, batch) -> (sum, count)")

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        """The model's raw output for a batch; by default of its first element."""
        first = next(iter(batch.values())) if isinstance(batch, Mapping) else batch
        first = first[0] if isinstance(first, (tuple, list)) else first
        return model(first)

    def optimizer(self, model: nn.Module, *, fused: bool | None = None) -> torch.optim.Optimizer:
        """The optimizer a training step uses."""
        import torch

        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise TargetError(
                f"the model of {self.name!r} has no parameters that can be trained",
                remedy="'hotlap bench --mode infer' times it without training, 'hotlap tune --for infer' tunes it so",
            )
        return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)

    def worst_case_batch(self, n: int, device: torch.device, generator: torch.Generator) -> Batch:
        """The batch of ``n`` that takes the most memory; by default any batch."""
        return self.make_batch(n, device, generator)

    def compare(self, out: Tensor, ref: Tensor) -> list[Agreement]:
        """How far two outputs agree in the task's own terms; none by default."""
        del out, ref
        return []

    def train_data(self) -> Dataset | None:
        """Samples to train on, which the default collation turns into batches as make_batch gives them."""
        return None

    def eval_data(self) -> Dataset | None:
        """Samples to judge by, apart from the training ones."""
        return None

    def collate(self, samples: Sequence[Any]) -> Batch:
        """Samples of train_data or eval_data as one batch."""
        from torch.utils.data import default_collate

        return default_collate(list(samples))

    def metrics(self, model: nn.Module, data: Dataset, device: torch.device) -> dict[str, float]:
        """The task's scores of a model on ``data``; none by default."""
        del model, data, device
        return {}


REQUIRED = ("build_model", "make_batch", "loss")


def is_workload(thing: Any) -> bool:
    """Whether ``thing`` keeps the protocol, by subclass or by shape."""
    if inspect.isclass(thing):
        return False
    return isinstance(thing, Workload) or all(callable(getattr(thing, name, None)) for name in REQUIRED)


def adopt(thing: Any, name: str) -> Workload:
    """``thing`` as a full Workload: one that only keeps the protocol by shape gets the defaults for the rest."""
    if isinstance(thing, Workload):
        return thing

    class Adopted(Workload):
        def __getattribute__(self, attribute: str) -> Any:
            if not attribute.startswith("_") and hasattr(thing, attribute):
                return getattr(thing, attribute)
            return super().__getattribute__(attribute)

    adopted = Adopted()
    if not hasattr(thing, "name"):
        adopted.name = name
    return adopted


def optimizer_of(workload: Workload, model: nn.Module, *, fused: bool) -> torch.optim.Optimizer:
    """The workload's optimizer, fused where that is wanted and can be: a method may lack the keyword."""
    takes = inspect.signature(workload.optimizer).parameters.values()
    knows = any(one.name == "fused" or one.kind is one.VAR_KEYWORD for one in takes)
    made = workload.optimizer(model, fused=True) if fused and knows else workload.optimizer(model)
    missing = [name for name in ("zero_grad", "step", "param_groups", "state_dict") if not hasattr(made, name)]
    if missing:
        raise TargetError(
            f"optimizer() of {workload.name!r} gave a {type(made).__name__}, which has no {missing[0]!r}",
            expected="one torch.optim.Optimizer",
            remedy="Parts of a model that learn differently are groups of one optimizer, as in "
            "Adam([{'params': a}, {'params': b, 'lr': 1e-4}]); those that take turns, as a GAN's, need a loop of your "
            "own (docs/own-loop.md)",
        )
    return made


def sum_and_count(made: Any) -> tuple[Tensor, Tensor | int]:
    """What a loss function returned, if it is a sum over samples and the count that makes it a mean."""
    import torch

    if not isinstance(made, (tuple, list)) or len(made) != 2 or not isinstance(made[0], torch.Tensor):
        parts = f" of {len(made)}" if isinstance(made, (tuple, list)) else ""
        raise UsageError(
            f"the loss function returned a {type(made).__name__}{parts}",
            expected="two things: the sum over the samples, and the count that makes it a mean",
            remedy="hotlap.sum_of_mean(fn) makes such a function from one that returns the mean",
        )
    if made[0].numel() != 1:
        raise UsageError(
            f"the loss function returned a sum of shape {list(made[0].shape)}",
            expected="one number",
            remedy="Add up with .sum(), or give the loss reduction='sum'",
        )
    return made[0], made[1]
