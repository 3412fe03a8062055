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


@contextlib.contextmanager
def kept_host_random() -> Iterator[None]:
    """Gives Python's, numpy's and torch's CPU generators back as they were, whatever is drawn or seeded inside."""
    import numpy
    import torch

    before = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        numpy.random.set_state(before[1])
        torch.set_rng_state(before[2])
