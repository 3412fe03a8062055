"""A machine with little memory, for tests without a card: operations fail when too much is alive, or when told to."""

from __future__ import annotations

import sys
from collections.abc import Collection

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class FakeMemory(TorchDispatchMode):
    """Counts operations, and the bytes of all that was made inside the block and is still alive.

    What was made outside, such as parameters and inputs, is free. With ``limit_bytes`` the operation fails whose result
    does not fit, as with a real allocator. Backward passes on the CPU run in the same thread and are covered too.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        super().__init__()
        self.limit_bytes = limit_bytes
        self.num_ops = self.peak_bytes = 0
        self.failed_in: list[set[str]] = []
        """For each failure, the names of the functions that were at work."""
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self._live = 0
        """Bytes of ``_alive``: of all that may still be alive."""

    @property
    def num_failures(self) -> int:
        return len(self.failed_in)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "profiler":  # marks of torch's own, which allocate nothing
            return func(*args, **(kwargs or {}))
        self.num_ops += 1
        return self._run(func, args, kwargs or {})

    def _run(self, func, args, kwargs):
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        out = func(*args, **kwargs)
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in given:
                self._add(tensor.untyped_storage())
        if self._live > self.peak_bytes or (self.limit_bytes is not None and self._live > self.limit_bytes):
            self._alive = {key: entry for key, entry in self._alive.items() if not entry[0].expired()}
            self._live = sum(size for _, size in self._alive.values())
            if self.limit_bytes is not None and self._live > self.limit_bytes:
                del out, tensor
                self._fail(f"{self._live} bytes alive, {self.limit_bytes} allowed")
            self.peak_bytes = max(self.peak_bytes, self._live)
        return out

    def _add(self, storage) -> None:
        if storage._cdata not in self._alive:  # a weak reference keeps the address from being used again
            self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
            self._live += storage.nbytes()

    def _fail(self, why: str) -> None:
        self.failed_in.append(functions_at_work())
        raise torch.OutOfMemoryError(f"CUDA out of memory (pretended): {why}")


class FailingOperations(FakeMemory):
    """Operations fail by their number, or the first ones inside a function, before they do anything.

    Bytes are not counted, which makes long campaigns possible.
    """

    def __init__(self, numbers: Collection[int] = (), *, inside: str = "", num_times: int = 1) -> None:
        super().__init__()
        self._numbers, self._inside, self._num_left = numbers, inside, num_times if inside else 0

    def _run(self, func, args, kwargs):
        if self._num_left and self._inside in functions_at_work():
            self._num_left -= 1
            self._fail(f"operation {self.num_ops}, in {self._inside}")
        if self.num_ops in self._numbers:
            self._fail(f"operation {self.num_ops}")
        return func(*args, **kwargs)


def functions_at_work() -> set[str]:
    """The names of all functions on the stack, with their classes."""
    frame, names = sys._getframe(1), set()
    while frame is not None:
        names.add(frame.f_code.co_qualname)
        frame = frame.f_back
    return names
