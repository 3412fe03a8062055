"""A process's stdout, kept for its answer: whatever else is printed in it goes to stderr."""

from __future__ import annotations

import os
from typing import TextIO


def take_stdout(encoding: str = "utf-8") -> TextIO:
    """The real stdout, for the caller alone.

    Descriptor 1 leads to stderr from now on, so that what programs and libraries that a target calls write below Python
    cannot get into an answer.
    """
    channel = os.fdopen(os.dup(1), "w", encoding=encoding, buffering=1)
    os.dup2(2, 1)
    keep_from_forks(channel.fileno())
    return channel


def keep_from_forks(descriptor: int) -> None:
    """Leads ``descriptor`` nowhere in the forks of this process, such as a loader's workers.

    They may outlive it, and whoever reads its answer would wait for them.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.register_at_fork(after_in_child=lambda: os.dup2(nowhere, descriptor, inheritable=False))
