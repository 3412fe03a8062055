"""Seeds for many purposes, and random states that come back as they were."""

from __future__ import annotations

import random

import numpy
import pytest
import torch

from hotlap.device import host_random
from hotlap.device.host_random import HostRandom, derived_seed, kept_host_random, seed_host


def draws():
    return random.random(), numpy.random.rand(), torch.rand(1).item()


def test_a_derived_seed_depends_on_every_part_and_on_their_order():
    seeds = {derived_seed(*parts) for parts in [("a", 1, 2), ("a", 2, 1), ("b", 1, 2), ("a", 1, 3), ("a", 12)]}
    assert len(seeds) == 5
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derived_seed("order", 0, 0) == 7453028512061360496, "a resumed run of another version must find it again"


def test_seeding_the_host_seeds_all_three_generators():
    with kept_host_random():
        seed_host(2**62 + 5)
        first = draws()
        seed_host(2**62 + 5)
        assert draws() == first
        seed_host(6)
        assert all(a != b for a, b in zip(draws(), first, strict=True))


def test_random_states_come_back_even_after_an_error():
    seed_host(1)
    want = draws()
    seed_host(1)
    with pytest.raises(KeyError), kept_host_random():
        seed_host(2)
        draws()
        raise KeyError
    assert draws() == want


def test_seeding_the_host_leaves_the_device_alone(device):
    if device.type == "cpu":
        pytest.skip("the CPU is the host")
    before = torch.cuda.get_rng_state()
    with kept_host_random():
        seed_host(3)
    assert torch.equal(torch.cuda.get_rng_state(), before)


@pytest.mark.parametrize("seen", range(3))
@pytest.mark.parametrize("drawn", range(4))
def test_numpys_state_is_the_one_of_now_also_between_two_normal_numbers(seen, drawn):
    with kept_host_random():
        seed_host(4)
        numpy.random.randn(seen)  # an odd number leaves one that is already made
        HostRandom()
        numpy.random.randn(drawn)
        now = HostRandom()
        want = numpy.random.randn(3)
        assert not now.is_now()
        now.restore()
        assert now.is_now() and numpy.array_equal(numpy.random.randn(3), want)


def test_another_generator_in_numpys_place_is_kept_too():
    before = numpy.random.get_bit_generator()
    numpy.random.set_bit_generator(numpy.random.PCG64(7))
    try:
        now = HostRandom()
        want = numpy.random.rand()
        now.restore()
        assert numpy.random.rand() == want
    finally:
        numpy.random.set_bit_generator(before)


@pytest.mark.parametrize("knows_memory", [True, False])
def test_pythons_state_is_the_one_of_now_also_between_two_normal_numbers(knows_memory, monkeypatch):
    if knows_memory:
        assert host_random._python_memory() is not None, "CPython keeps its generator elsewhere now"
    else:
        monkeypatch.setattr(host_random, "_python_memory", lambda: None)
    with kept_host_random():
        random.seed(5)
        start = HostRandom()
        drawn = [random.random(), random.gauss(0, 1)]
        between = HostRandom()
        drawn += [random.gauss(0, 1), random.random()]
        assert not start.is_now() and not between.is_now()
        between.restore()
        assert between.is_now() and [random.gauss(0, 1), random.random()] == drawn[2:]
        start.restore()
        assert [random.random(), random.gauss(0, 1), random.gauss(0, 1), random.random()] == drawn
