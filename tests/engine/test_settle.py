"""How many workers a training takes by itself: what its first steps show, within what the machine can bear."""

import time

import pytest
import torch

from hotlap.engine import settle
from hotlap.engine.loader import Loaded
from hotlap.engine.loader_choice import Limits
from hotlap.engine.settle import FIRST, STEPS, Settling, workers_needed

ROOMY = Limits(cpus=16, shm_bytes=2**33, memory_bytes=2**36)


@pytest.mark.parametrize(
    ("load_ms", "step_ms", "on_cpu", "workers"),
    [(1, 20, False, 0), (2, 20, False, 0), (10, 20, False, 1), (20, 20, False, 2), (100, 20, False, 6),
     (1000, 20, False, 16), (100, 20, True, 4), (1, 20, True, 0), (5, 0, False, 16)],
)  # fmt: skip
def test_workers_keep_up_with_the_step_and_no_more(load_ms, step_ms, on_cpu, workers):
    assert workers_needed(load_ms / 1e3, step_ms / 1e3, ROOMY, on_cpu=on_cpu) == workers


def test_two_cores_that_compute_have_none_to_spare():
    assert workers_needed(1.0, 0.1, Limits(cpus=2), on_cpu=True) == 0


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


def watch(settling, clock, load_s, step_s):
    def batches():
        for position in range(FIRST + STEPS):
            clock.now += load_s if position >= FIRST else 10 * load_s
            yield Loaded(batch=torch.zeros(4, 1000), num_samples=4, position=position, offset=0, slots=(0, 1, 2, 3))

    seen = []
    for loaded in settling.watched(batches()):
        clock.now += step_s
        seen.append(loaded.position)
    return seen


def test_the_first_steps_decide_and_nothing_is_lost(clock, monkeypatch):
    monkeypatch.setattr(settle, "read_limits", lambda: Limits(cpus=16, shm_bytes=2**33, memory_bytes=2**36))
    settling = Settling(torch.device("cpu"), prefetch=2)
    assert watch(settling, clock, 0.030, 0.020) == list(range(FIRST + STEPS))
    settings, why = settling.settings()
    assert settling.is_over and (settings.num_workers, settings.prefetch_factor) == (2, 2)
    assert why == "loading a batch takes 30.0 ms beside a step of 20.0 ms: 2 workers from now on"


def test_shared_memory_that_is_too_small_means_fewer(clock, monkeypatch):
    monkeypatch.setattr(
        settle, "read_limits", lambda: Limits(cpus=64, shm_bytes=2 * 2 * 16_000 * 3, memory_bytes=2**36)
    )
    settling = Settling(torch.device("cpu"), prefetch=2)
    watch(settling, clock, 0.200, 0.020)
    settings, why = settling.settings()
    assert settings.num_workers == 3 and "more were refused" in why and "/dev/shm" in why
