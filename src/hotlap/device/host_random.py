"""Chance on the host, sample by sample: seeds derived for one purpose each, and states that come back as they were."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator


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


class HostRandom:
    """Where Python's, numpy's and torch's CPU generators stand."""

    def __init__(self) -> None:
        import numpy
        import torch

        self._python, self._numpy, self._torch = random.getstate(), numpy.random.get_state(), torch.get_rng_state()

    def restore(self) -> None:
        import numpy
        import torch

        random.setstate(self._python)
        numpy.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)

    def is_now(self) -> bool:
        """Whether nothing has been drawn or seeded since."""
        import numpy

        now = HostRandom()
        same = self._python == now._python and self._torch.equal(now._torch)
        return same and all(map(numpy.array_equal, self._numpy, now._numpy))


@contextlib.contextmanager
def kept_host_random() -> Iterator[None]:
    """Gives Python's, numpy's and torch's CPU generators back as they were, whatever is drawn or seeded inside."""
    before = HostRandom()
    try:
        yield
    finally:
        before.restore()
