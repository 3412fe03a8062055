"""Measuring a loader: every sample counted, sizes right, workers gone afterwards, and a choice for one's own loop."""

from __future__ import annotations

import multiprocessing

import pytest
import torch
from torch.utils.data import DataLoader

import hotlap
from hotlap.base.errors import ConfigError, DataError, DeviceUnavailable, TargetError, UsageError
from hotlap.engine import loader_speed
from hotlap.engine.loader_choice import Limits
from hotlap.engine.loader_settings import LoaderSettings
from hotlap.engine.loader_speed import make_loader, measure_speed
from hotlap.workload import BadSample

pytestmark = pytest.mark.usefixtures("no_hang")
CPU = torch.device("cpu")
DATA = torch.zeros(20, 16)


OWN = """
import torch
from hotlap.workload import Workload

class Own(Workload):
    def build_model(self): return torch.nn.Linear(2, 1)
    def make_batch(self, n, device, generator): return torch.zeros(n, 2)
    def loss(self, model, batch): return model(batch).sum(), len(batch)
    def train_data(self): return [torch.zeros(i + 1) for i in range(9)]
    def collate(self, samples): return torch.nn.utils.rnn.pad_sequence(samples)
"""


@pytest.mark.parametrize("settings", [LoaderSettings(), LoaderSettings(num_workers=1, prefetch_factor=2)])
def test_a_speed_has_windows_sizes_and_no_workers_left_behind(settings):
    before = set(multiprocessing.active_children())
    loader = make_loader(DATA, settings, batch=8, seed=0, device=CPU)
    speed = measure_speed(loader, CPU, seconds=0.02, windows=3)
    assert len(speed.rates) == 3 and min(speed.rates) > 0 and speed.start_s > 0
    assert (speed.batch_bytes, speed.num_samples) == (8 * 16 * 4, 20)
    assert (speed.worker_bytes is None) == (settings.num_workers == 0)
    assert settings.num_workers == 0 or speed.worker_bytes > 2**20
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.parametrize(("decides", "windows"), [(1e-6, 2), (1e12, 2), (None, 4)])
def test_two_windows_are_enough_where_they_leave_no_doubt(decides, windows):
    loader = make_loader(DATA, LoaderSettings(), batch=8, seed=0, device=CPU)
    assert len(measure_speed(loader, CPU, seconds=0.005, windows=4, decides=decides).rates) == windows


def test_a_speed_is_measured_on_the_device(device):
    settings = LoaderSettings(pin_memory=device.type == "cuda")
    speed = measure_speed(make_loader(DATA, settings, batch=8, seed=0, device=device), device, seconds=0.02, windows=2)
    assert len(speed.rates) == 2 and min(speed.rates) > 0


def test_a_batch_larger_than_the_dataset_is_refused():
    with pytest.raises(ConfigError, match=r"batch = 64 is larger than the dataset of 20 samples\. Expected at most 20"):
        make_loader(DATA, LoaderSettings(), batch=64, seed=0, device=CPU)


class AllBad:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        raise BadSample(f"{index}.png", "empty")


def test_data_of_which_nothing_can_be_read_has_no_speed():
    loader = make_loader(AllBad(), LoaderSettings(), batch=4, seed=0, device=CPU, on_bad_sample="skip")
    with pytest.raises(DataError, match="every sample was bad"):
        measure_speed(loader, CPU, seconds=0.01, windows=2)


def test_settings_for_one_s_own_loop_are_what_torch_takes(monkeypatch):
    monkeypatch.setattr(loader_speed, "read_limits", lambda: Limits(cpus=1))
    settings = hotlap.loader_settings(DATA, batch=8, step_ms=1e6)
    assert settings == LoaderSettings()
    assert [len(batch) for batch in DataLoader(DATA, batch_size=8, **settings.dataloader_arguments())] == [8, 8, 4]


def test_a_model_faster_than_any_loader_gets_workers_or_none_but_always_an_answer(monkeypatch):
    monkeypatch.setattr(loader_speed, "read_limits", lambda: Limits(cpus=1, shm_bytes=0))
    assert hotlap.loader_settings(DATA, batch=8, step_ms=1e-6).num_workers == 0, "no worker could hand a batch over"


@pytest.mark.parametrize("step_ms", [0, -1, float("nan"), float("inf")])
def test_a_step_that_is_no_time_is_refused(step_ms):
    with pytest.raises(ConfigError, match=f"step_ms = {step_ms} is not a time"):
        hotlap.loader_settings(DATA, batch=8, step_ms=step_ms)


@pytest.mark.parametrize("asked", ["cuda:97", torch.device("cuda", 97)])
def test_a_card_that_is_not_there_is_refused_in_words(asked):
    with pytest.raises(DeviceUnavailable, match=r"CUDA device was asked for|does not exist") as caught:
        hotlap.loader_settings(DATA, batch=8, step_ms=5, device=asked)
    assert caught.value.exit_code == 4


def test_a_word_that_is_no_device_is_refused():
    with pytest.raises(UsageError, match="device = 'gpu' is not a device"):
        hotlap.loader_settings(DATA, batch=8, step_ms=5, device="gpu")


def test_a_target_without_data_has_no_settings(tmp_path, monkeypatch):
    (tmp_path / "plain.py").write_text("from torch import nn\ndef mlp():\n    return nn.Linear(4, 2)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TargetError, match=r"plain\.py:mlp"):
        hotlap.loader_settings("plain.py:mlp", batch=8, step_ms=5)


def test_a_target_s_own_data_is_measured_with_its_own_collate(tmp_path, monkeypatch):
    monkeypatch.setattr(loader_speed, "read_limits", lambda: Limits(cpus=1))
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    assert hotlap.loader_settings("own.py:Own", batch=4, step_ms=1e6) == LoaderSettings()
