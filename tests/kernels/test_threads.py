"""Shares of the work for threads."""

from __future__ import annotations

import threading

import pytest
import torch

from hotlap.kernels.threads import in_threads


@pytest.mark.parametrize("num_pieces", [0, 1, 2, 7])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_every_piece_is_done_once(num_pieces, num_threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    shares, lock = [], threading.Lock()

    def work(begin, end, word):
        assert word == "given"
        with lock:
            shares.append(range(begin, end))

    in_threads(work, num_pieces, "given")
    assert sorted(n for share in shares for n in share) == list(range(num_pieces))
    assert len(shares) == max(1, min(num_threads, num_pieces))


def test_what_goes_wrong_in_a_thread_is_raised(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)

    def work(begin, end):
        if begin:
            raise ValueError(f"piece {begin}")

    with pytest.raises(ValueError, match="piece 2"):
        in_threads(work, 4)
