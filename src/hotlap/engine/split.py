"""One effective batch as micro-batches: every sample once, in order, nothing copied."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves, tree_map

from hotlap.base.errors import UsageError
from hotlap.workload import Batch

_WORDS = (str, bytes, int, float, bool, type(None))
"""What a list may hold one of for each sample, such as file names."""


def num_samples(batch: Batch) -> int:
    """The samples of a batch: the first dimension of its first tensor."""
    found = _first_tensor(batch)
    if found is None:
        raise UsageError(
            f"a batch of type {type(batch).__name__} has no tensor with a first dimension",
            expected="a tensor, or a dict, list or tuple of tensors whose first dimension counts the samples",
        )
    return found.shape[0]


def _first_tensor(batch: Batch) -> Tensor | None:
    if type(batch) in (dict, list, tuple):  # as nearly all are, and every step asks
        inner = list(batch.values() if isinstance(batch, dict) else batch)
        if inner and isinstance(inner[0], Tensor) and inner[0].ndim > 0 and all(isinstance(t, Tensor) for t in inner):
            return inner[0]
    for leaf in tree_leaves(batch, is_leaf=_is_packed):
        if _is_packed(leaf):
            raise UsageError(
                "a batch holds a PackedSequence, whose first dimension does not count samples",
                expected="padded sequences with their lengths",
            )
        found = leaf if isinstance(leaf, Tensor) else None
        if isinstance(leaf, Mapping):
            found = next((t for t in map(_first_tensor, leaf.values()) if t is not None), None)
        if found is not None and found.ndim > 0:
            return found
    return None


def _is_packed(thing: Any) -> bool:
    return isinstance(thing, PackedSequence)


def take(batch: Batch, start: int, stop: int) -> Batch:
    """Samples ``start`` to ``stop`` of a batch, as views; what is not counted by sample stays whole.

    A tensor is counted by sample when its first dimension is the number of samples, a list when it holds that many
    words or numbers.
    """
    total = num_samples(batch)
    if (start, stop) == (0, total):
        return batch

    def is_words(thing: Any) -> bool:
        return isinstance(thing, list) and len(thing) == total and all(isinstance(word, _WORDS) for word in thing)

    def cut(leaf: Any) -> Any:
        counted = is_words(leaf) or (isinstance(leaf, Tensor) and leaf.ndim > 0 and leaf.shape[0] == total)
        return leaf[start:stop] if counted else leaf

    return _map(cut, batch, is_words)


def _map(change: Callable[[Any], Any], batch: Batch, is_leaf: Callable[[Any], bool] = lambda thing: False) -> Batch:
    """The batch with its leaves changed; mappings that torch does not know, such as a tokenizer's output, too."""

    def inside(leaf: Any) -> Any:
        if not isinstance(leaf, Mapping):
            return change(leaf)
        changed = {name: _map(change, value, is_leaf) for name, value in leaf.items()}
        if not isinstance(leaf, MutableMapping):
            return changed
        same = copy.copy(leaf)  # what else such an object can do stays possible
        same.update(changed)
        return same

    return tree_map(inside, batch, is_leaf=is_leaf)


def leaves_of(batch: Batch) -> list[Any]:
    """What a batch is made of, in order, tensors and all else."""
    found: list[Any] = []
    _map(found.append, batch)
    return found


def copy_of(batch: Batch) -> Batch:
    """The batch with tensors of its own."""
    return _map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, batch)


def micro_ranges(total: int, micro: int) -> list[tuple[int, int]]:
    """``total`` samples in as few parts as ``micro`` allows; their sizes differ by one at most.

    A short last part would take no less memory, and BatchNorm cannot work on a part of one.
    """
    assert micro >= 1
    num = -(-total // micro)
    ranges = [(part * total // num, (part + 1) * total // num) for part in range(num)]
    assert sum(stop - start for start, stop in ranges) == total
    return ranges


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on ``device``."""
    return _map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, batch)
