"""Workers that live on read into the next epoch, so that no epoch begins with waiting; no batch changes."""

import time

import pytest
import torch
from test_loader import Numbers, all_indices, indices, loader

from hotlap.engine.loader import LoaderSettings, TrainLoader

pytestmark = pytest.mark.usefixtures("no_hang")


class Noted(Numbers):
    """Leaves a file for every sample that was asked for, in whichever process."""

    def __init__(self, folder, size=8):
        super().__init__(size)
        self.folder = folder

    def __getitem__(self, index):
        (self.folder / f"{index}-{time.monotonic_ns()}").touch()
        return torch.tensor(index)


def test_workers_that_read_on_begin_the_next_epoch_before_it_is_asked_for(tmp_path):
    settings = LoaderSettings(num_workers=1, prefetch_factor=2, persistent_workers=True)
    train = TrainLoader(Noted(tmp_path), batch=2, seed=0, settings=settings, read_on=True)
    assert len(list(train.epoch(0))) == 4
    give_up = time.monotonic() + 20
    while len(list(tmp_path.iterdir())) <= 8 and time.monotonic() < give_up:
        time.sleep(0.01)
    assert len(list(tmp_path.iterdir())) > 8
    train.close()


def test_reading_on_changes_no_batch_wherever_an_epoch_is_left_or_entered():
    settings = LoaderSettings(num_workers=2, prefetch_factor=3, persistent_workers=True)
    train, plain = loader(settings=settings, read_on=True), loader()
    for epoch in (0, 1):
        assert all_indices(train.epoch(epoch)) == all_indices(plain.epoch(epoch))
    left = train.epoch(2)
    assert [indices(next(left)) for _ in range(2)] == all_indices(plain.epoch(2))[:2]
    assert all_indices(train.epoch(2, 2)) == all_indices(plain.epoch(2, 2)), "goes on where it was left"
    assert all_indices(train.epoch(7, 1)) == all_indices(plain.epoch(7, 1)), "and elsewhere begins anew"
    assert list(train.epoch(7, train.num_batches)) == []
    train.go_on_with(LoaderSettings(num_workers=1, persistent_workers=True))
    assert all_indices(train.epoch(8)) == all_indices(plain.epoch(8))
    train.close()
