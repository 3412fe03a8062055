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
    return channel
