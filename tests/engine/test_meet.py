"""Processes find one another, and never those of an earlier start, in a store that outlives them."""

from __future__ import annotations

import threading

import pytest
from torch.distributed import HashStore

from hotlap.engine.meet import meet


def together(store, size):
    words = {}

    def one(rank):
        words[rank] = meet(store, rank, size, timeout_s=20)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return words


def test_all_agree_on_a_word_that_is_new_each_time():
    store = HashStore()
    first, second = together(store, 3), together(store, 3)
    assert len(first) == len(second) == 3
    assert len(set(first.values())) == len(set(second.values())) == 1
    assert first[0] != second[0]


def test_what_those_before_left_at_any_point_does_not_mislead():
    store = HashStore()
    with pytest.raises(TimeoutError, match="process 0 did not answer"):
        meet(store, 1, 3, timeout_s=0.1)  # said hello and died
    with pytest.raises(TimeoutError, match="process 1, 2 did not come"):
        meet(store, 0, 3, timeout_s=0.1)  # answered the dead and died
    words = together(store, 3)
    assert len(words) == 3 and len(set(words.values())) == 1


def test_one_process_meets_itself():
    assert meet(HashStore(), 0, 1, timeout_s=1)
