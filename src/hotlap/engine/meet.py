"""How processes that were just started find one another in a store that may still hold words of those before them.

torchrun keeps its store when it starts processes again, so that addresses of the dead are still in it, and its count
of restarts differs between machines. So each process says a word of its own, and the first one answers to that word.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

POLL_S = 0.02


def meet(store: Any, rank: int, size: int, *, timeout_s: float) -> str:
    """A word that all processes now here agree on, and none of an earlier start knows."""
    mine = secrets.token_hex(8)
    deadline = time.monotonic() + timeout_s
    return _lead(store, mine, size, deadline) if rank == 0 else _follow(store, mine, rank, deadline)


def _lead(store: Any, word: str, size: int, deadline: float) -> str:
    """Answers every hello, as often as it changes, until its sender has taken the word."""
    answered: dict[int, str] = {}
    missing = set(range(1, size))
    while missing:
        for rank in sorted(missing):
            hello = _read(store, f"meet/hello/{rank}")
            if hello is not None and answered.get(rank) != hello:
                store.set(f"meet/answer/{rank}", f"{hello} {word}")
                answered[rank] = hello
            if _read(store, f"meet/taken/{rank}") == word:
                missing.discard(rank)
        _pause(deadline, f"process {', '.join(map(str, sorted(missing)))} did not come", bool(missing))
    return word


def _follow(store: Any, mine: str, rank: int, deadline: float) -> str:
    store.set(f"meet/hello/{rank}", mine)
    while True:
        hello, _, word = (_read(store, f"meet/answer/{rank}") or "").partition(" ")
        if hello == mine:
            store.set(f"meet/taken/{rank}", word)
            return word
        _pause(deadline, "process 0 did not answer", True)


def _read(store: Any, key: str) -> str | None:
    return store.get(key).decode() if store.check([key]) else None


def _pause(deadline: float, why: str, waits: bool) -> None:
    if waits:
        if time.monotonic() > deadline:
            raise TimeoutError(why)
        time.sleep(POLL_S)
