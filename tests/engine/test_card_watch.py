"""Readings of a card beside a training's metrics."""

import concurrent.futures
import threading
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


def test_the_driver_is_asked_once_a_second_at_most_and_never_waited_for(monkeypatch, fake_nvml, clock):
    answer = threading.Event()

    def rates(handle):
        assert answer.wait(10)
        return SimpleNamespace(gpu=len(library.calls))

    library = fake_nvml(1, nvmlDeviceGetUtilizationRates=rates)
    stats = {"allocated_bytes": {"all": {"peak": 3 * 2**30}}}
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="GPU-0000"))
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: stats)
    watch = CardWatch(torch.device("cuda", 0))
    assert watch.read() == watch.read() == {"peak_bytes": 3 * 2**30}  # the driver has not answered yet
    answer.set()
    first = answered(watch)
    assert first == {"utilisation": 1.0, "peak_bytes": 3 * 2**30}
    assert in_words(first) == ["GPU 1%", "3.00 GiB"]
    clock.seconds += 0.9
    assert watch.read()["utilisation"] == 1.0 and len(library.calls) == 1
    clock.seconds += 0.2
    watch.read()
    assert answered(watch)["utilisation"] == 2.0
    watch.close()


def answered(watch):
    """What it says once the question under way is answered."""
    concurrent.futures.wait([watch._asked])
    return watch.read()


def test_other_devices_have_no_readings():
    assert CardWatch(torch.device("cpu")).read() == {}
