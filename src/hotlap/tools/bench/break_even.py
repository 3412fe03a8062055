"""From which batch on the GPU pays, with the copies to and from it counted."""

from __future__ import annotations

import math
from typing import Any

from hotlap.measure.jobs import Sweep


def sweep_batches(largest: int) -> list[int]:
    """1, 2, 4, ... and ``largest`` itself."""
    sizes = [2**power for power in range(largest.bit_length()) if 2**power <= largest]
    return sizes if sizes[-1] == largest else [*sizes, largest]


def find_break_even(sweep: Sweep, host: str, card: str) -> dict[str, Any]:
    """The smallest tried batch from which on the card wins at every larger one, or None; in words too."""
    host_ms, card_ms = sweep.times_ms[host], sweep.times_ms[card]
    wins = [not math.isnan(c) and (math.isnan(h) or c < h) for h, c in zip(host_ms, card_ms, strict=True)]
    batch = None
    for size, won in reversed(list(zip(sweep.batches, wins, strict=True))):
        if not won:
            break
        batch = size
    if batch is None:
        text = f"{card} does not pay at any batch tried, up to {sweep.batches[-1]}, copies included"
    elif batch == sweep.batches[0]:
        text = f"{card} pays from batch {batch} on, the smallest tried, copies included"
    else:
        text = f"{card} pays from batch {batch} on, copies included"
    return {"batches": sweep.batches, "times_ms": sweep.times_ms, "batch": batch, "text": text}
