"""Chance on the host, sample by sample: seeds derived for one purpose each, and states that come back as they were."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import pickle
import random
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast


def derived_seed(*parts: int | str) -> int:
    """A seed below 2^63 for one purpose (its parts say which), unrelated to the seeds of all others."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_host(seed: int) -> None:
    """Seeds Python, numpy and torch's CPU generator; those of the devices go on undisturbed."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


_MT19937_BYTES = 625 * 4
"""A Mersenne twister in memory: 624 words and the place among them."""
_Memory = ctypes.c_char * _MT19937_BYTES
_kept: list[tuple[bytes, Any]] = []
"""The memory of numpy's generator when its state was last asked for, and that state; at most one."""
_kept_python: list[tuple[bytes, Any, Any]] = []
"""The same of Python's, with the normal number it has in store."""
_numpy_memory: list[tuple[Any, ctypes.Array[ctypes.c_char]]] = []
"""The generator that numpy had last, and its memory; at most one."""


@functools.cache
def _python_memory() -> ctypes.Array[ctypes.c_char] | None:
    """Where CPython keeps its generator: the place and then 624 words; None where that is not so."""
    if sys.implementation.name != "cpython" or type(random._inst).__basicsize__ < _MT19937_BYTES:  # type: ignore[attr-defined]
        return None
    found = _Memory.from_address(id(random._inst) + object.__basicsize__)  # type: ignore[attr-defined]
    place, *words = struct.unpack(f"{_MT19937_BYTES // 4}I", found.raw)
    return found if (*words, place) == random.getstate()[1] else None


def _python_state() -> Any:
    """``random.getstate()``, which makes 625 numbers, asked for only if something was drawn since the last time."""
    found = _python_memory()
    if found is None:
        return random.getstate()
    memory, stored = found.raw, random._inst.gauss_next  # type: ignore[attr-defined]
    if not _kept_python or _kept_python[0][0] != memory or _kept_python[0][1] != stored:
        _kept_python[:] = [(memory, stored, random.getstate())]
    return _kept_python[0][2]


def _numpy_state() -> Any:
    """``numpy.random.get_state()``, asked for only if something was drawn since the last time.

    Numpy copies the state number by number, which takes longer than everything else a training step keeps. While the
    memory is the same nothing was drawn, unless it was the second of two normal numbers, which are made together.
    """
    generator = _asks_numpy()()
    if not _numpy_memory or _numpy_memory[0][0] is not generator:
        import numpy

        if type(generator) is not numpy.random.MT19937:
            return numpy.random.get_state(legacy=False)
        _numpy_memory[:] = [(generator, _Memory.from_address(generator.ctypes.state_address))]
    memory = _numpy_memory[0][1].raw
    if not _kept or _kept[0][0] != memory or _kept[0][1][3]:
        import numpy

        _kept[:] = [(memory, numpy.random.get_state())]
    return _kept[0][1]


@functools.cache
def _asks_numpy() -> Callable[[], Any]:
    """What tells numpy's generator of now; every step asks, and importing again and again takes longer than asking."""
    from numpy.random import mtrand

    return cast(Callable[[], Any], mtrand.get_bit_generator)


@functools.cache
def _torch_generator() -> Any:
    import torch

    return torch.default_generator


class HostRandom:
    """Where Python's, numpy's and torch's CPU generators stand."""

    def __init__(self) -> None:
        self._python, self._numpy, self._torch = _python_state(), _numpy_state(), _torch_generator().get_state()

    def restore(self) -> None:
        import numpy

        random.setstate(self._python)
        numpy.random.set_state(self._numpy)
        _torch_generator().set_state(self._torch)

    def is_now(self) -> bool:
        """Whether nothing has been drawn or seeded since."""
        now = HostRandom()
        same = self._python == now._python and self._torch.equal(now._torch)
        return same and pickle.dumps(self._numpy) == pickle.dumps(now._numpy)


@contextlib.contextmanager
def kept_host_random() -> Iterator[None]:
    """Gives Python's, numpy's and torch's CPU generators back as they were, whatever is drawn or seeded inside."""
    before = HostRandom()
    try:
        yield
    finally:
        before.restore()
