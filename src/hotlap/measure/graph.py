"""Work recorded once as a CUDA graph and replayed: the host launches one thing instead of hundreds."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotlap.base.errors import UsageError
from hotlap.workload import Batch

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

WARM_STEPS = 3
"""Steps before the recording: libraries choose algorithms, optimizer state comes into being, compilers compile."""


@dataclass(frozen=True)
class Recording:
    """Work that was recorded, and the tensors that each replay writes its results to."""

    replay: Callable[[], None]
    out: Any


class Recorder:
    """Makes recordings on one card that share their memory, so that only one at a time may hold results."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self.aside_bytes = 0
        """What the allocator calls free, though only recordings may use it."""

    def record(self, work: Callable[[], Any]) -> Recording:
        """What ``work`` would do, without doing it. Everything it needs must have been run before, such as compilers.

        Raises what ``work`` raises, and RuntimeError where the card's driver refuses; the card can be used either way.
        """
        import torch

        gc.collect()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        before = self._free_bytes()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            # Other threads, such as one that pins batches, may go on using the card meanwhile.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                out = work()
            except BaseException:
                self._abandon(graph)
                raise
            try:
                graph.capture_end()
            except RuntimeError:
                self._tidy_up()
                raise
        self.aside_bytes += max(0, self._free_bytes() - before)
        return Recording(graph.replay, out)

    def close(self) -> None:
        """Lets go of what would keep the memory of recordings that are gone."""
        import torch

        torch._C._cuda_clearCublasWorkspaces()  # those of the recorder's stream lie there

    def _free_bytes(self) -> int:
        import torch

        return torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        try:
            graph.capture_end()
        except RuntimeError:  # what has broken the recording is told already
            self._tidy_up()

    def _tidy_up(self) -> None:
        """Where ending a recording fails, torch may leave allocator and generators as in the midst of one."""
        import torch

        with contextlib.suppress(RuntimeError):  # it has stopped by itself
            torch._C._cuda_endAllocateToPool(self._device.index, self._pool)
        spare = torch.cuda.CUDAGraph()
        spare.capture_begin(capture_error_mode="thread_local")
        torch.zeros((), device=self._device)
        spare.capture_end()


@contextlib.contextmanager
def waits_seen(device: torch.device) -> Iterator[list[str]]:
    """Where the block makes the host wait for the card, as ``file.py:12``, in a list that is filled at its end."""
    import torch

    found: list[str] = []
    if device.type != "cuda":
        yield found
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for warning in heard:
        if "synchronizing CUDA operation" in str(warning.message):
            found.append(f"{Path(warning.filename).name}:{warning.lineno}")
        elif "ynchronization debug mode" not in str(warning.message):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


class GraphedStep:
    """``step(batch)`` for batches of one shape; weights and optimizer state start as they were before the recording."""

    def __init__(
        self,
        step: Callable[[Batch], Tensor],
        example: Batch,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        recorder: Recorder | None = None,
    ) -> None:
        """Steps of one ``recorder`` share their memory: a result is to be copied before another of them is called."""
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
        recorder = recorder or Recorder(torch.device("cuda", torch.cuda.current_device()))
        self._recording = recorder.record(lambda: step(self._static))
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
        self._recording.replay()
        return self._recording.out


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
