"""The clocks, the warm-up rule, memory and chance."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
import torch

from hotlap.device.memory import Memory, PeakMemory, is_out_of_memory
from hotlap.device.precision import fp32_precision, set_fp32_precision
from hotlap.device.seed import generator, seed_everything
from hotlap.device.timing import MOST_INTERVALS, is_steady, kept_of, time_block, time_host


def busy_wait(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_a_block_agrees_with_a_step_of_known_length():
    blocks = [time_block(lambda: busy_wait(0.005), 10, torch.device("cpu")) for _ in range(8)]
    for block in blocks:
        assert len(block.intervals_ms) == 10
        assert block.wall_ms == pytest.approx(sum(block.intervals_ms) / 10)
    # Other work on the machine makes steps longer, never shorter: one of 80 is undisturbed.
    assert min(min(block.intervals_ms) for block in blocks) == pytest.approx(5.0, rel=0.02)


def test_a_block_calls_its_step_exactly_as_often_as_asked(device):
    calls = []
    block = time_block(lambda: calls.append(torch.ones(8, device=device).sum()), 7, device)
    assert len(calls) == len(block.intervals_ms) == 7
    assert block.wall_ms > 0


def test_a_block_on_the_host_begins_no_step_after_its_time():
    block = time_block(lambda: busy_wait(0.01), 1000, torch.device("cpu"), most_s=0.025)
    assert len(block.intervals_ms) <= 3
    assert block.wall_ms == pytest.approx(sum(block.intervals_ms) / len(block.intervals_ms))
    assert len(time_block(lambda: busy_wait(0.01), 4, torch.device("cpu"), most_s=0.001).intervals_ms) == 1
    assert len(time_block(lambda: busy_wait(0.01), 4, torch.device("cpu"), most_s=0.0).intervals_ms) == 1


def test_of_a_long_block_one_time_of_each_equal_part_is_kept_and_all_count_in_its_mean():
    many = 7 * MOST_INTERVALS + 13
    calls = []
    block = time_block(lambda: calls.append(None), many, torch.device("cpu"))
    assert len(calls) == many and len(block.intervals_ms) == MOST_INTERVALS
    kept = kept_of(many)
    assert all(7 * part <= place < 7 * (part + 1) + 13 for part, place in enumerate(kept)), "one of each part, in order"
    assert kept == kept_of(many) and list(kept_of(MOST_INTERVALS)) == list(range(MOST_INTERVALS))


@pytest.mark.parametrize("every", [7, 8, 100])
def test_percentiles_of_what_is_kept_are_those_of_all_though_slow_steps_come_in_regular_turns(every):
    times = np.where(np.arange(100 * MOST_INTERVALS) % every, 1.0, 5.0)
    kept = times[list(kept_of(len(times)))]
    share = 1 / every
    # Three standard errors of a share among so many.
    assert (kept == 5.0).mean() == pytest.approx(share, abs=3 * (share * (1 - share) / MOST_INTERVALS) ** 0.5)


def test_the_clock_itself_costs_next_to_nothing():
    best = min(time_block(lambda: None, 1000, torch.device("cpu")).wall_ms for _ in range(5))
    assert best < 0.005, "5 µs of clock would be 0.1% of a step of 5 ms"


def test_nothing_of_the_clock_is_made_or_looked_up_between_two_steps_on_a_card(monkeypatch):
    done: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: str) -> None:
            assert stream == "the current one"
            done.append("record")

        def elapsed_time(self, after: Event) -> float:
            return 1.0

    def current_stream() -> str:
        done.append("look up")
        return "the current one"

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("wait"))
    block = time_block(lambda: done.append("step"), 2, torch.device("cuda"))
    made = ["look up", "record", "record", "record"]
    assert done == [*made, "wait", "record", "step", "record", "step", "record", "wait"]
    assert block.intervals_ms == [1.0, 1.0]


@pytest.mark.parametrize(
    ("medians", "steady"),
    [
        ([], False),
        ([1.0, 1.0], False),
        ([1.0, 1.0, 1.0], True),
        ([9.0, 1.0, 1.04, 1.02], True),
        ([1.0, 1.0, 1.06], False),
        ([1.0, 1.0, 1.0, 5.0], False),
        ([1.2, 1.1, 1.0], False),
    ],
)
def test_steady_means_three_blocks_in_a_row_within_five_per_cent(medians, steady):
    assert is_steady(medians) is steady


def test_one_seed_decides_everything():
    def draw():
        seed_everything(7)
        return random.random(), np.random.rand(), torch.rand(3).tolist()

    assert draw() == draw()


def test_a_generator_does_not_depend_on_what_was_drawn_before():
    first = torch.rand(3, generator=generator(1))
    torch.rand(100)
    assert torch.equal(first, torch.rand(3, generator=generator(1)))
    assert not torch.equal(first, torch.rand(3, generator=generator(2)))


def test_the_precision_of_float32_is_set_both_ways():
    set_fp32_precision("tf32")
    assert fp32_precision() == {"matmul": "tf32", "conv": "tf32", "rnn": "tf32"}
    set_fp32_precision("ieee")
    assert fp32_precision() == {"matmul": "ieee", "conv": "ieee", "rnn": "ieee"}


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (torch.OutOfMemoryError("x"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling"), True),
        (RuntimeError("GET was unable to find an engine to execute this computation"), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_running_out_of_memory_is_told_from_other_errors(error, verdict):
    assert is_out_of_memory(error) is verdict


def test_the_real_error_of_a_host_allocation_is_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def test_host_memory_is_the_growth_since_the_start_even_below_an_earlier_peak():
    before = torch.ones(512 * 2**20, dtype=torch.uint8)
    del before
    peak = PeakMemory(torch.device("cpu"))
    kept = torch.ones(64 * 2**20, dtype=torch.uint8)
    assert peak.read() == Memory(host_rss_bytes=pytest.approx(64 * 2**20, rel=0.1))
    assert kept[-1] == 1


def test_the_hosts_time_is_taken_from_an_empty_queue_to_the_calls_return(monkeypatch):
    order = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: order.append("empty"))
    times = time_host(lambda: order.append("step"), 2)
    assert order == ["empty", "step", "empty", "step", "empty"]
    assert len(times) == 2 and all(0 <= ms < 1e3 for ms in times)
