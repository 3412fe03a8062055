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
from collections.abc import Iterator
from typing import Any


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
"""Numpy's generator in memory: 624 words and the place among them."""
_kept: list[tuple[bytes, Any]] = []
"""The memory of numpy's generator when its state was last asked for, and that state; at most one."""
_kept_python: list[tuple[bytes, Any, Any]] = []
"""The same of Python's, with the normal number it has in store."""


@functools.cache
def _python_memory() -> int | None:
    """Where CPython keeps its generator: the place and then 624 words; None where that is not so."""
    found = id(random._inst) + object.__basicsize__  # type: ignore[attr-defined]
    if sys.implementation.name != "cpython" or type(random._inst).__basicsize__ < _MT19937_BYTES:  # type: ignore[attr-defined]
        return None
    place, *words = struct.unpack(f"{_MT19937_BYTES // 4}I", ctypes.string_at(found, _MT19937_BYTES))
    return found if (*words, place) == random.getstate()[1] else None


def _python_state() -> Any:
    """``random.getstate()``, which makes 625 numbers, asked for only if something was drawn since the last time."""
    address = _python_memory()
    if address is None:
        return random.getstate()
    memory, stored = ctypes.string_at(address, _MT19937_BYTES), random._inst.gauss_next  # type: ignore[attr-defined]
    if not _kept_python or _kept_python[0][0] != memory or _kept_python[0][1] != stored:
        _kept_python[:] = [(memory, stored, random.getstate())]
    return _kept_python[0][2]


def _numpy_state() -> Any:
    """``numpy.random.get_state()``, asked for only if something was drawn since the last time.

    Numpy copies the state number by number, which takes longer than everything else a training step keeps. While the
    memory is the same nothing was drawn, unless it was the second of two normal numbers, which are made together.
    """
    import numpy
    from numpy.random import mtrand

    generator = mtrand.get_bit_generator()
    if type(generator) is not numpy.random.MT19937:
        return numpy.random.get_state(legacy=False)
    memory = ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
    if not _kept or _kept[0][0] != memory or _kept[0][1][3]:
        _kept[:] = [(memory, numpy.random.get_state())]
    return _kept[0][1]


class HostRandom:
    """Where Python's, numpy's and torch's CPU generators stand."""

    def __init__(self) -> None:
        import torch

        self._python, self._numpy, self._torch = _python_state(), _numpy_state(), torch.get_rng_state()

    def restore(self) -> None:
        import numpy
        import torch

        random.setstate(self._python)
        numpy.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)

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
