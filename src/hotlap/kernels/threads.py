"""Compiled functions run on several cores: each thread takes an equal share of the pieces.

Numba can do this itself, and then takes several times as long to compile a function.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch


@functools.cache
def _pool(process: int, workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="hotlap-kernel")


def in_threads(function: Callable[..., None], num_pieces: int, *arguments: Any) -> None:
    """Runs ``function(begin, end, *arguments)`` over all pieces, in as many threads as torch may use.

    The function must let go of the interpreter's lock, as one compiled with ``nogil`` does.
    """
    workers = max(1, min(torch.get_num_threads(), num_pieces))
    if workers == 1:
        function(0, num_pieces, *arguments)
        return
    ends = [num_pieces * n // workers for n in range(workers + 1)]
    pool = _pool(os.getpid(), torch.get_num_threads())  # threads do not survive a fork
    shares = [pool.submit(function, begin, end, *arguments) for begin, end in itertools.pairwise(ends)]
    for share in shares:
        share.result()
