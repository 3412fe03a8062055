"""For tests that make hundreds of short runs."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="module")
def many_runs():
    """One thread, as the layers are tiny, and a garbage collector that looks only at what the test itself makes."""
    import torch
    from fake_memory import FakeMemory

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with FakeMemory():
        torch.zeros(())  # what torch imports at its first use is here now
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)


@pytest.fixture
def recorders(monkeypatch):
    """Steps of this test record without a card."""
    from fake_recorder import use_fake_recorders

    return use_fake_recorders(monkeypatch)
