"""Chance, kept: the generators stand where they stood."""

from __future__ import annotations

import random

import numpy
import pytest
import torch

from hotlap.base.errors import DeviceUnavailable, EnvironmentUnusable
from hotlap.device.seed import rng_state, seed_everything, set_rng_state


@pytest.fixture(autouse=True)
def _chance_of_others():
    """Other tests draw as if this one had not been."""
    before = rng_state()
    yield
    set_rng_state(before, all_devices=False)


def draws(device):
    """Numbers from every global generator, those with a stored half of a pair included."""
    return [
        *(random.random() for _ in range(3)), random.gauss(0, 1), random.getrandbits(64),
        *numpy.random.random(3).tolist(), float(numpy.random.standard_normal()),
        *torch.rand(3).tolist(), *torch.randn(3).tolist(), *torch.rand(3, device=device).tolist(),
    ]  # fmt: skip


@pytest.mark.parametrize("warm_up", [0, 1, 2, 700])
def test_draws_repeat_bit_for_bit_after_the_state_is_put_back(device, warm_up):
    seed_everything(5)
    torch.rand(1, device=device)
    for _ in range(warm_up):
        random.gauss(0, 1), numpy.random.standard_normal(), torch.randn(1)
    state = rng_state()
    want = draws(device)
    assert draws(device) != want, "the generators move on"
    set_rng_state(state)
    assert draws(device) == want


def test_taking_the_state_draws_nothing(device):
    seed_everything(6)
    want = draws(device)
    seed_everything(6)
    rng_state()
    assert draws(device) == want


def test_a_saved_state_does_not_change_with_later_draws(device):
    seed_everything(7)
    torch.rand(1, device=device)
    state = rng_state()
    want = draws(device)
    random.random(), numpy.random.random(1000), torch.rand(1000), torch.rand(1000, device=device)
    set_rng_state(state)
    assert draws(device) == want


def test_every_cuda_device_in_use_is_in_the_state(device):
    torch.rand(1, device=device)
    expected = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
    assert len(rng_state()["cuda"]) == expected
    assert expected or device.type == "cpu"


def test_a_state_of_more_devices_than_are_here_is_refused_before_anything_is_set():
    num_here = torch.cuda.device_count()
    state = {**rng_state(), "cuda": [torch.zeros(16, dtype=torch.uint8)] * (num_here + 1)}
    want = torch.rand(1)
    set_rng_state({**state, "cuda": []})
    with pytest.raises(DeviceUnavailable, match=rf"is of {num_here + 1} CUDA devices, {num_here} are visible"):
        set_rng_state(state)
    assert torch.rand(1) == want


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="a state for no device at all needs a machine without one")
def test_devices_that_are_not_here_can_be_left_out():
    state = {**rng_state(), "cuda": [torch.zeros(16, dtype=torch.uint8)]}
    want = torch.rand(2)
    set_rng_state(state, all_devices=False)
    assert torch.equal(torch.rand(2), want)


def test_another_kind_of_numpy_generator_is_named(monkeypatch):
    other = numpy.random.RandomState(numpy.random.PCG64(1))
    monkeypatch.setattr(numpy.random, "get_state", other.get_state)
    with pytest.raises(EnvironmentUnusable, match=r"numpy's global generator is PCG64.*MT19937"):
        rng_state()
