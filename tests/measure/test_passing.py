"""Messages with tensors through a pipe: what comes out is what went in, in the same memory, and nothing stays open."""

from __future__ import annotations

import gc
import multiprocessing
import os

import numpy as np
import psutil
import pytest
import torch

from hotlap.measure.passing import LARGEST_HELD, MOST_SHOWN, Shelf, Window, put, receive, send


@pytest.fixture
def pipe():
    ends = multiprocessing.get_context("spawn").Pipe()
    yield ends
    for end in ends:
        end.close()


def open_files():
    gc.collect()  # what earlier tests left open is closed by and by
    return psutil.Process(os.getpid()).num_fds()


def test_tensors_keep_values_layout_and_memory(pipe):
    here, there = pipe
    picture = torch.arange(24, dtype=torch.uint8).reshape(1, 2, 4, 3).permute(0, 3, 1, 2)
    rows = torch.rand(4, 5)
    send(here, ("finish", {"plan": (1, 2)}, [picture, rows[1:3]], torch.empty(1, 7, 9, 0)))
    kind, facts, (got, part), nothing = receive(there)
    assert (kind, facts, nothing.shape) == ("finish", {"plan": (1, 2)}, (1, 7, 9, 0))
    assert torch.equal(got, picture) and got.stride() == picture.stride()
    assert torch.equal(part, rows[1:3])
    rows[1, 0] = 9.0
    assert part[0, 0] == 9.0, "one memory, seen twice"


def test_what_is_put_into_shared_memory_is_sent_as_it_lies_there(pipe):
    here, there = pipe
    before = open_files()
    picture = torch.arange(240, dtype=torch.uint8).reshape(2, 10, 4, 3).permute(0, 3, 1, 2)[1:]
    shared, nothing = put(picture), put(torch.empty(0, 3))
    assert torch.equal(shared, picture) and shared.stride() == picture.stride() and nothing.shape == (0, 3)
    send(here, shared)
    got = receive(there)
    shared[0, 0, 0, 0] = 7
    assert got[0, 0, 0, 0] == 7 and picture[0, 0, 0, 0] == 120, "one memory, seen twice, and not where it came from"
    del shared, got
    assert open_files() <= before


def test_many_tensors_go_at_once_and_no_file_stays_open(pipe):
    here, there = pipe
    before = open_files()
    for _ in range(3):
        given = [torch.full((3,), float(n)) for n in range(300)]
        send(here, given)
        got = receive(there)
        assert [float(t[0]) for t in got] == [float(n) for n in range(300)]
    del given, got
    assert open_files() <= before


def test_where_no_more_files_may_be_open_that_is_said_and_nothing_waits(pipe, no_hang):
    resource = pytest.importorskip("resource")
    here, there = pipe
    send(here, [torch.rand(2), torch.rand(3)])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(there.fileno())
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, limits[1]))  # the pipe's own copy, and no tensor
    try:
        with pytest.raises(OSError, match="Too many open files"):
            receive(there)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_pipe_that_ended_says_so(pipe):
    here, there = pipe
    here.close()
    with pytest.raises(EOFError):
        receive(there)
    with pytest.raises(OSError, match="Broken pipe"):
        send(there, torch.ones(2))


def test_a_shelf_shows_one_array_after_the_other_where_the_last_one_was():
    shelf, first = Shelf(), np.arange(6, dtype=np.float32).reshape(2, 3)
    shown = shelf.hold("maps", first)
    again = shelf.hold("maps", first[::-1] + 1)
    assert again.data_ptr() == shown.data_ptr() and again.tolist() == [[4, 5, 6], [1, 2, 3]]
    other = shelf.hold("maps", first.astype(np.float64))
    assert other.dtype == torch.float64 and other.tolist() == first.tolist()
    assert shelf.hold("picture", np.ones(2, np.uint8)).tolist() == [1, 1] and shelf.hold("maps", first).tolist()
    large = np.zeros(LARGEST_HELD + 1, np.uint8)
    assert shelf.hold("maps", large).data_ptr() != shelf.hold("maps", large).data_ptr(), "too much to keep"


def test_through_a_window_a_shelf_is_mapped_once(pipe):
    here, there = pipe
    shelf, window, before = Shelf(), Window(), open_files()

    def shown(maps, picture):
        send(here, (shelf.hold("maps", maps), shelf.hold("picture", picture)))
        got = receive(there, window)
        np.testing.assert_array_equal(got[0].numpy(), maps)
        np.testing.assert_array_equal(got[1].numpy(), picture)
        return [tensor.data_ptr() for tensor in got]

    maps, picture = np.ones((2, 50, 60), np.float32), np.zeros((50, 60, 3), np.uint8)
    first = shown(maps, picture)
    assert shown(maps + 1, picture + 1) == first, "where it was, with what is there now"
    other = shown(maps[:, :40], picture + 2)
    assert other[0] != first[0] and other[1] == first[1]
    assert len(window._mapped) == MOST_SHOWN, "what is shown no more is let go of"
    assert shown(maps[:, :30], picture[:30]) != other and len(window._mapped) == MOST_SHOWN
    large = np.zeros(LARGEST_HELD + 1, np.uint8)
    send(here, shelf.hold("maps", large))
    assert receive(there, window).numel() == len(large) and len(window._mapped) == MOST_SHOWN
    assert all(size <= LARGEST_HELD for *_, size in window._mapped), "too much to keep"
    assert open_files() <= before + 2 * MOST_SHOWN, "a file for each side of what is still shown"
