"""One effective batch as micro-batches: every sample once, in order, nothing copied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from hotlap.base.errors import UsageError
from hotlap.workload import Batch


def num_samples(batch: Batch) -> int:
    """The samples of a batch: the first dimension of its first tensor."""
    for leaf in tree_leaves(_plain(batch)):
        if isinstance(leaf, Tensor) and leaf.ndim > 0:
            return leaf.shape[0]
    raise UsageError(
        f"a batch of type {type(batch).__name__} has no tensor with a first dimension",
        expected="a tensor, or a dict, list or tuple of tensors whose first dimension counts the samples",
    )


def take(batch: Batch, start: int, stop: int) -> Batch:
    """Samples ``start`` to ``stop`` of a batch, as views; what is not counted by sample stays whole."""
    total = num_samples(batch)
    if (start, stop) == (0, total):
        return batch

    def cut(leaf: Any) -> Any:
        counted = isinstance(leaf, Tensor) and leaf.ndim > 0 and leaf.shape[0] == total
        return leaf[start:stop] if counted else leaf

    return tree_map(cut, _plain(batch))


def _plain(batch: Batch) -> Batch:
    """Mappings that torch does not know, such as a tokenizer's output, as dicts."""
    return dict(batch) if isinstance(batch, Mapping) and type(batch) is not dict else batch


def micro_ranges(total: int, micro: int) -> list[tuple[int, int]]:
    """``total`` samples in steps of ``micro``; only the last may be smaller."""
    assert micro >= 1
    ranges = [(start, min(start + micro, total)) for start in range(0, total, micro)]
    assert sum(stop - start for start, stop in ranges) == total
    return ranges


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on ``device``."""
    return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, _plain(batch))
