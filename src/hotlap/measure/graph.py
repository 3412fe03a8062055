"""A step recorded once as a CUDA graph and replayed: the host launches one thing instead of hundreds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hotlap.base.errors import UsageError
from hotlap.workload import Batch

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

WARM_STEPS = 3
"""Steps before the recording: libraries choose algorithms, optimizer state comes into being, compilers compile."""


class GraphedStep:
    """``step(batch)`` for batches of one shape; weights and optimizer state start as they were before the recording."""

    def __init__(
        self,
        step: Callable[[Batch], Tensor],
        example: Batch,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        import torch
        from torch.utils._pytree import tree_leaves, tree_map_only

        if optimizer is not None:
            make_capturable(optimizer)
        self._static = tree_map_only(torch.Tensor, torch.clone, example)
        self._inputs: list[Tensor] = [leaf for leaf in tree_leaves(self._static) if isinstance(leaf, torch.Tensor)]
        before = {name: value.detach().clone() for name, value in model.state_dict().items()}
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_STEPS):
                step(self._static)
        torch.cuda.current_stream().wait_stream(stream)
        if optimizer is not None:
            optimizer.zero_grad(set_to_none=True)  # recorded gradients are then written, not added to
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._out = step(self._static)
        _put_back(model, before, optimizer)

    def __call__(self, batch: Batch) -> Tensor:
        """The result for ``batch``; it is overwritten by the next call."""
        import torch
        from torch.utils._pytree import tree_leaves

        given = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
        for static, now in zip(self._inputs, given, strict=True):
            if static.shape != now.shape:
                raise UsageError(
                    f"a recorded step got a tensor of shape {list(now.shape)}",
                    expected=f"{list(static.shape)}, the shape it was recorded with",
                )
        torch._foreach_copy_(self._inputs, given)
        self._graph.replay()
        return self._out


def make_capturable(optimizer: torch.optim.Optimizer) -> None:
    """Lets an optimizer's step be recorded: counters on the device, no host decisions."""
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
        elif group.get("foreach") is None and "foreach" in group:
            group["foreach"] = True


def _put_back(model: nn.Module, before: dict[str, Tensor], optimizer: torch.optim.Optimizer | None) -> None:
    """Undoes the steps of the warm-up in place: the recording holds on to these very tensors."""
    import torch

    with torch.no_grad():
        for name, value in model.state_dict().items():
            value.copy_(before[name])
        for state in optimizer.state.values() if optimizer is not None else ():
            for name, value in state.items():
                if not isinstance(value, torch.Tensor):
                    raise UsageError(
                        f"optimizer state {name!r} is a {type(value).__name__}, which a recorded step cannot follow",
                        remedy="Leave graph out, or take an optimizer with its state on the device",
                    )
                value.zero_()
