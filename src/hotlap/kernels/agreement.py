"""Whether two implementations of a kernel agree: every output and every gradient, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Inputs = Mapping[str, Tensor | None]
Run = Callable[[Inputs], dict[str, Tensor]]


def outputs_and_grads(run: Run, inputs: Inputs, seed: int = 1) -> dict[str, Tensor]:
    """The outputs of ``run`` and, as ``grad <name>``, the gradient of every floating-point input.

    The gradients are those of the outputs' sum, each number weighted by a draw from ``seed``, the same on every device.
    """
    leaves = {name: _leaf(tensor) for name, tensor in inputs.items()}
    outputs = run(leaves)
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros((), dtype=torch.float64)
    for output in outputs.values():
        weight = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        total = total.to(output.device) + (output.double() * weight.to(output.device)).sum()
    total.backward()
    found = {name: output.detach() for name, output in outputs.items()}
    for name, leaf in leaves.items():
        if leaf is not None and leaf.requires_grad:
            found[f"grad {name}"] = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
    return found


def _leaf(tensor: Tensor | None) -> Tensor | None:
    if tensor is None or not tensor.is_floating_point():
        return tensor
    return tensor.detach().requires_grad_()


def in_float64(inputs: Inputs) -> dict[str, Tensor | None]:
    """The same numbers in float64, for the reference to start from what the kernel starts from."""
    return {n: t.double() if t is not None and t.is_floating_point() else t for n, t in inputs.items()}


def relative_errors(
    got: Mapping[str, Tensor], want: Mapping[str, Tensor], typical: Mapping[str, float] | None = None
) -> dict[str, float]:
    """For each name the largest difference over the largest wanted number; not a number where ``got`` is not one.

    ``typical`` is the size that some usually have: a sum of numbers with either sign may happen to be next to nothing.
    """
    assert list(got) == list(want), (list(got), list(want))
    errors = {}
    for name, wanted in want.items():
        assert got[name].shape == wanted.shape, (name, got[name].shape, wanted.shape)
        if wanted.numel() == 0:
            errors[name] = 0.0
            continue
        difference = (got[name].double().cpu() - wanted.double().cpu()).abs().max()
        largest = max(wanted.double().abs().max().item(), (typical or {}).get(name, 0.0))
        errors[name] = (difference / largest if largest > 0 else difference).item()
    return errors


def disagreements(
    got: Mapping[str, Tensor], want: Mapping[str, Tensor], tolerance: float, typical: Mapping[str, float] | None = None
) -> dict[str, float]:
    """The relative errors that are above the tolerance or not numbers; empty if all agree."""
    return {name: error for name, error in relative_errors(got, want, typical).items() if not error <= tolerance}
