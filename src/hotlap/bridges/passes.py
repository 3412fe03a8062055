"""A foreign trainer's forward and backward pass, done in parts and done again when memory runs out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from hotlap.base.errors import OutOfMemory
from hotlap.engine.exact import ExactStep, StepResult
from hotlap.measure.dropout import KEYED_KINDS
from hotlap.workload import Batch

log = logging.getLogger("hotlap")

Part = Callable[[Batch], "tuple[Tensor, Tensor | int]"]
"""The forward pass of one part: its summed loss, scaled as the trainer scales it, and the count to divide by."""


@dataclass(frozen=True, kw_only=True)
class BridgeConfig:
    """How a foreign trainer's steps are protected."""

    micro: int | None = None
    """Samples at a time, at most; none begins with the whole batch."""
    recompute: Literal["auto", "on", "off"] = "auto"
    """Activation checkpointing: auto switches it on when not even one sample fits."""
    regrow_after: int = 200
    """Steps without trouble after which a micro-batch twice as large is tried again."""
    runs: Path = Path("runs")
    """Folder for the record."""
    name: str = ""
    """Name of the run; by default the model's."""


class Passes:
    """Gradients of a trainer's batches, exact for every split; the trainer keeps its optimizer and its step."""

    def __init__(self, model: nn.Module, config: BridgeConfig, say: Callable[[str], None]) -> None:
        self.model = model
        self._plain = _dropouts(model)
        self._part: Part | None = None
        self._gradients = _Gradients(model)
        self.step = ExactStep(
            model,
            self._gradients,
            self._loss,
            micro=config.micro,
            recompute=config.recompute,
            regrow_after=config.regrow_after,
            say=say,
        )
        for finding in self.step.inexact():
            say(f"a split step would not be exact: {finding}")

    def run(self, batch: Batch, part: Part, begin: Callable[[], None]) -> StepResult:
        """Leaves the gradients of ``batch`` and nothing else; ``begin`` is called before each attempt."""
        self._part, self._gradients.begin = part, begin
        try:
            return self.step.gradients(batch)
        except OutOfMemory as error:
            remedy = "What would help: half precision, activation checkpointing, a smaller input, a smaller model"
            raise OutOfMemory(error.what, remedy=remedy) from error

    def close(self) -> None:
        """Gives the model its own dropout layers back."""
        for parent, name, layer in self._plain:
            parent._modules[name] = layer.train(parent.training)

    def _loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | int]:
        del model
        assert self._part is not None
        return self._part(batch)


class _Gradients(torch.optim.Optimizer):
    """What an exact step asks of an optimizer when another one takes the step: all parameters, no gradients."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), {})
        self._model = model
        self.begin: Callable[[], None] = lambda: None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Called before each attempt."""
        del set_to_none
        self.begin()
        take_gradients(self._model)


def take_gradients(model: nn.Module) -> list[tuple[nn.Parameter, Tensor]]:
    """The gradients of ``model``, which has none afterwards."""
    taken = [(p, p.grad) for p in model.parameters() if p.grad is not None]
    for parameter, _ in taken:
        parameter.grad = None
    return taken


@torch.no_grad()
def add_gradients(gradients: list[tuple[nn.Parameter, Tensor]]) -> None:
    """Adds gradients to those that are there."""
    for parameter, gradient in gradients:
        parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)


def nothing(device: torch.device) -> tuple[Tensor, int]:
    """The loss of a part without anything to learn from, whose mean would be 0 / 0."""
    return torch.zeros((), device=device, requires_grad=True), 0


def _dropouts(model: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    children = [(parent, name, child) for parent in model.modules() for name, child in parent._modules.items()]
    return [(parent, name, child) for parent, name, child in children if type(child) in KEYED_KINDS and child]
