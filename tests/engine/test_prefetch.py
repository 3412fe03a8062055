"""Batches on the device ahead of their use: the same ones, in order, with nothing lost to an error behind them."""

from __future__ import annotations

import pytest
import torch

from hotlap.base.errors import ConfigError
from hotlap.engine.loader import Loaded, LoaderSettings, TrainLoader
from hotlap.engine.prefetch import DevicePrefetcher
from hotlap.workload import BadSample

pytestmark = pytest.mark.usefixtures("no_hang")


def share(position, batch):
    count = 0 if batch is None else len(batch["image"])
    return Loaded(batch=batch, num_samples=count, position=position, offset=0, slots=tuple(range(count)))


def images(position):
    return {"image": torch.full((2, 3, 4, 4), float(position)), "label": [torch.tensor([position, 7])]}


def shares(number, empty=()):
    return [share(k, None if k in empty else images(k)) for k in range(number)]


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_batches_come_in_order_on_the_device(device, depth):
    got = list(DevicePrefetcher(shares(5), device, depth=depth))
    assert [loaded.position for loaded in got] == [0, 1, 2, 3, 4]
    for k, loaded in enumerate(got):
        assert loaded.batch["image"].device.type == loaded.batch["label"][0].device.type == device.type
        assert loaded.batch["image"].eq(k).all() and loaded.batch["label"][0].tolist() == [k, 7]
        assert loaded.num_samples == 2


def test_an_empty_share_passes_through(device):
    got = list(DevicePrefetcher(shares(3, empty=[0, 2]), device))
    assert [loaded.batch is None for loaded in got] == [True, False, True]


def test_channels_last_reaches_images_alone(device):
    (got,) = DevicePrefetcher(shares(1), device, layout={4: torch.channels_last})
    assert got.batch["image"].is_contiguous(memory_format=torch.channels_last)
    assert got.batch["label"][0].is_contiguous()


def test_on_the_cpu_nothing_is_copied_or_read_ahead():
    source = shares(3)
    asked = []
    prefetcher = DevicePrefetcher((asked.append(s) or s for s in source), torch.device("cpu"), depth=2)
    assert next(prefetcher).batch["image"] is source[0].batch["image"]
    assert len(asked) == 1


@pytest.mark.parametrize("depth", [1, 2])
def test_good_batches_before_an_error_are_used_first(device, depth):
    def source():
        yield from shares(3)
        raise BadSample("3", "torn")

    prefetcher = DevicePrefetcher(source(), device, depth=depth)
    assert [next(prefetcher).position for _ in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(BadSample, match="torn"):
            next(prefetcher)


def test_an_end_stays_an_end(device):
    prefetcher = DevicePrefetcher(shares(1), device)
    assert len(list(prefetcher)) == 1
    assert list(prefetcher) == []


def test_a_negative_depth_is_refused():
    with pytest.raises(ConfigError, match="depth = -1 is negative"):
        DevicePrefetcher([], torch.device("cpu"), depth=-1)


def test_memory_is_safe_while_steps_lag_behind(device):
    """Long steps are queued without waiting; a batch whose memory was handed on too early would show in its sum."""
    side = 512
    data = torch.arange(24.0)[:, None, None].expand(24, side, side).contiguous()
    settings = LoaderSettings(pin_memory=device.type == "cuda")
    train = TrainLoader(data, batch=2, seed=0, shuffle=False, settings=settings, device=device)
    sums = []
    for loaded in DevicePrefetcher(train.epoch(0), device, depth=2):
        slow = loaded.batch
        for _ in range(20):
            slow = (slow @ torch.eye(side, device=device)) if device.type == "cuda" else slow
        sums.append((slow + loaded.batch).mean(dim=(1, 2)) / 2)
    assert torch.cat(sums).cpu().tolist() == list(range(24))


@pytest.mark.gpu
def test_copies_wait_for_no_one_and_use_a_stream_of_their_own():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    pinned = [share(k, {"image": torch.full((2, 3, 64, 64), float(k)).pin_memory()}) for k in range(4)]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for loaded in DevicePrefetcher(pinned, torch.device("cuda")):
            loaded.batch["image"].mul_(2)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_the_loader_pins_for_a_card():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    for settings in (LoaderSettings(pin_memory=True), LoaderSettings(pin_memory=True, num_workers=1)):
        train = TrainLoader(torch.zeros(4, 2), batch=2, seed=0, settings=settings, device=torch.device("cuda"))
        assert all(loaded.batch.is_pinned() for loaded in train.epoch(0))
