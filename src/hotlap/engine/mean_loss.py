"""A mean loss, as most training scripts have it, in the form that an exact step needs: a sum and its count."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from hotlap.base.errors import UsageError
from hotlap.engine.split import num_samples
from hotlap.workload import Batch

Count = Callable[[Batch], "int | Tensor"]
"""What the mean loss of a batch is the mean over: its samples, its unmasked tokens, ..."""


def sum_of_mean(
    mean_loss: Callable[[nn.Module, Batch], Tensor], count: Count = num_samples
) -> Callable[[nn.Module, Batch], tuple[Tensor, int]]:
    """The loss function of an ExactStep from one that returns the mean over a batch.

    >>> step = ExactStep(model, optimizer, sum_of_mean(lambda model, batch: criterion(model(batch[0]), batch[1])))

    The mean must be over what ``count`` counts, by default samples. A mean over unmasked tokens or pixels needs a
    ``count`` of its own, such as ``lambda batch: (batch["labels"] != -100).sum()``; with the wrong one, split steps
    weigh their parts wrongly.
    """

    def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        num = int(count(batch))
        if num == 0:  # its mean is 0 / 0; this one has no gradient for the model
            device = next((p.device for p in model.parameters()), None)
            return torch.zeros((), device=device, requires_grad=True), 0
        mean = mean_loss(model, batch)
        check_mean(mean)
        # In double precision a multiplication by the count and the division that follows cancel to the last bit of
        # any smaller format, in the gradient too: an unsplit step is then the very one of a loop without this.
        return mean.double() * num, num

    return loss


def check_mean(loss: object) -> None:
    """Raises when ``loss`` is not what a mean loss can be."""
    if not isinstance(loss, Tensor):
        raise UsageError(f"the loss function returned {type(loss).__name__}", expected="a tensor with one number")
    if loss.numel() != 1:
        raise UsageError(
            f"the loss function returned a tensor of shape {list(loss.shape)}",
            expected="one number, the mean over the batch",
            remedy="Leave the reduction at 'mean'",
        )
