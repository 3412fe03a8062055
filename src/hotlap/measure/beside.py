"""What processes have in common that work beside the one which feeds a card: small, single-threaded, out of its way."""

from __future__ import annotations

import os

from hotlap.device.kept_memory import keep_memory

ATTEMPTS = 2
"""Processes that a picture may see die; then it is taken to be the cause."""
NICER = 5
"""How much they stand back where cores are short: a card is idle while the process that feeds it waits for a core."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
"""For the environment, read by libraries when they are loaded; there are as many processes as cores."""
LARGEST_KEPT, MOST_KEPT = 32 << 20, 256 << 20
"""Bytes of one array, and of all, that a process keeps for the next picture."""


def settle() -> None:
    """Makes this process one of them."""
    import torch

    os.nice(NICER)
    torch.set_num_threads(1)
    keep_memory(largest=LARGEST_KEPT, most=MOST_KEPT)
