"""Readings of a card beside a training's metrics."""

from types import SimpleNamespace

import pytest
import torch

from hotlap.engine import card_watch
from hotlap.engine.card_watch import CardWatch, in_words


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(card_watch.time, "monotonic", lambda: now.seconds)
    return now


def test_the_driver_is_asked_once_a_second_at_most(monkeypatch, fake_nvml, clock):
    library = fake_nvml(1, nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=len(library.calls)))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="GPU-0000"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**30)
    watch = CardWatch(torch.device("cuda", 0))
    first = watch.read()
    assert first == {"utilisation": 1.0, "peak_bytes": 3 * 2**30}
    assert in_words(first) == ["GPU 1%", "3.00 GiB"]
    clock.seconds += 0.9
    assert watch.read()["utilisation"] == 1.0
    clock.seconds += 0.2
    assert watch.read()["utilisation"] == 2.0
    watch.close()


def test_other_devices_have_no_readings():
    assert CardWatch(torch.device("cpu")).read() == {}
