"""The loader: one order for any workers, ranks and resuming; seeded samples; bad ones; clear failures."""

from __future__ import annotations

import gc
import itertools
import os
import random

import numpy
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from hotlap.base.errors import EXIT_USAGE, ConfigError, DataError, EnvironmentUnusable, UnknownName
from hotlap.engine.loader import LoaderSettings, TrainLoader
from hotlap.workload import BadSample

pytestmark = pytest.mark.usefixtures("no_hang")
WORKERS = [LoaderSettings(), LoaderSettings(num_workers=1), LoaderSettings(num_workers=2, prefetch_factor=3)]


class Numbers(Dataset):
    """Sample i is i, with noise from all three generators; remembers which it was asked for (in this process)."""

    def __init__(self, size=23):
        self.size, self.asked = size, []

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.asked.append(index)
        large = torch.rand(70_000)  # several threads would sum it in another order
        noise = [random.random(), numpy.random.rand(), torch.rand(()).item(), large.sum().item()]
        return {"index": index, "noise": torch.tensor(noise, dtype=torch.float64)}


class Faulty(Numbers):
    """Calls some samples bad, and raises at others."""

    def __init__(self, size=23, bad=(), broken=(), error=ValueError):
        super().__init__(size)
        self.bad, self.broken, self.error = bad, broken, error

    def __getitem__(self, index):
        if index in self.bad:
            raise BadSample(f"/data/{index}.png", "truncated file")
        if index in self.broken:
            raise self.error(f"no {index} here")
        return super().__getitem__(index)


def loader(data=None, batch=5, seed=3, **rest):
    return TrainLoader(data if data is not None else Numbers(), batch=batch, seed=seed, **rest)


def indices(loaded):
    return [] if loaded.batch is None else loaded.batch["index"].tolist()


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def all_indices(epoch):
    return [indices(loaded) for loaded in epoch]


def noise_by_index(epoch):
    there = [loaded for loaded in epoch if loaded.batch is not None]
    return {i: n.tolist() for loaded in there for i, n in zip(indices(loaded), loaded.batch["noise"], strict=True)}


def test_an_epoch_holds_every_sample_once_and_keeps_the_ragged_end():
    train = loader()
    batches = list(train.epoch(0))
    assert [b.num_samples for b in batches] == [5, 5, 5, 5, 3]
    assert train.num_batches == 5 and [b.position for b in batches] == [0, 1, 2, 3, 4]
    assert sorted(flat(map(indices, batches))) == list(range(23))
    assert all(b.slots == tuple(range(b.num_samples)) and b.offset == 0 and b.bad == () for b in batches)


def test_seed_and_epoch_decide_the_order():
    train = loader()
    assert all_indices(train.epoch(1)) == all_indices(train.epoch(1)) == all_indices(loader().epoch(1))
    assert all_indices(train.epoch(1)) != all_indices(train.epoch(2))
    assert all_indices(train.epoch(1)) != all_indices(loader(seed=4).epoch(1))
    assert flat(all_indices(loader(shuffle=False).epoch(1))) == list(range(23))


def test_batches_are_the_same_to_the_bit_for_any_number_of_workers():
    want, *others = [list(loader(settings=settings).epoch(1, start=1)) for settings in WORKERS]
    for got in others:
        for a, b in zip(want, got, strict=True):
            assert indices(a) == indices(b)
            assert torch.equal(a.batch["noise"], b.batch["noise"])


def test_a_sample_draws_the_same_in_any_batch_but_other_numbers_in_another_epoch():
    first, second = noise_by_index(loader().epoch(0)), noise_by_index(loader().epoch(1))
    assert first == noise_by_index(loader(batch=23).epoch(0))
    assert all(a != b for i in first for a, b in zip(first[i], second[i], strict=True))


@pytest.mark.parametrize("settings", WORKERS, ids=lambda s: str(s.num_workers))
def test_the_trainer_s_own_random_numbers_and_threads_are_left_alone(settings):
    def states():
        return torch.get_rng_state().tolist(), random.getstate(), str(numpy.random.get_state()), torch.get_num_threads()

    before = states()
    for _ in loader(settings=settings).epoch(0):
        assert states() == before
    assert states() == before


def test_resuming_loads_nothing_of_what_was_done():
    data = Numbers()
    train = loader(data)
    want = all_indices(train.epoch(2))
    data.asked.clear()
    assert all_indices(train.epoch(2, start=3)) == want[3:]
    assert data.asked == flat(want[3:])
    assert list(train.epoch(2, start=5)) == []


@pytest.mark.parametrize("start", [-1, 6])
def test_a_start_outside_the_epoch_is_refused(start):
    with pytest.raises(ConfigError, match=rf"start = {start} is not in the epoch\. Expected 0 to 5"):
        loader().epoch(0, start=start)


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_the_ranks_together_hold_each_global_batch_in_order(world):
    whole = all_indices(loader().epoch(0))
    ranks = [list(loader(rank=rank, world=world).epoch(0)) for rank in range(world)]
    for position, want in enumerate(whole):
        shares = [rank[position] for rank in ranks]
        assert flat(map(indices, shares)) == want
        assert [i for share in shares for i in share.slots] == list(range(len(want)))
        assert [share.offset for share in shares if share.slots] == [share.slots[0] for share in shares if share.slots]
        sizes = [share.num_samples for share in shares]
        assert max(sizes) - min(sizes) <= 1
        assert all((share.batch is None) == (share.num_samples == 0) for share in shares)


def test_persistent_workers_serve_epoch_after_epoch_even_after_a_break():
    train = loader(settings=LoaderSettings(num_workers=2, persistent_workers=True))
    plain = loader()
    half = train.epoch(0)
    assert [indices(next(half)) for _ in range(2)] == all_indices(plain.epoch(0))[:2]
    for epoch, start in [(1, 0), (2, 3)]:
        assert all_indices(train.epoch(epoch, start)) == all_indices(plain.epoch(epoch, start))
    with pytest.raises(AssertionError, match="another epoch was begun"):
        list(half)
    train.close()


def test_garbage_is_looked_for_only_where_workers_are_forked(monkeypatch):
    """It takes long, and an epoch may be short."""
    looked, collect = [], gc.collect
    monkeypatch.setattr(gc, "collect", lambda: looked.append(1) or collect())
    train = loader(settings=LoaderSettings(num_workers=1, persistent_workers=True))
    for epoch in range(3):
        assert len(list(train.epoch(epoch))) == train.num_batches
    assert len(looked) == 1
    train.close()
    list(train.epoch(3))
    assert len(looked) == 2
    train.close()


def test_workers_end_with_their_epoch():
    import multiprocessing

    before = set(multiprocessing.active_children())
    epoch = loader(settings=WORKERS[2]).epoch(0)
    next(epoch)
    assert len(set(multiprocessing.active_children()) - before) == 2
    epoch.close()
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.parametrize("settings", WORKERS, ids=lambda s: str(s.num_workers))
def test_bad_samples_are_left_out_and_counted(settings):
    order = flat(all_indices(loader().epoch(0)))
    bad = {order[1], order[7], *order[10:15]}
    train = loader(Faulty(bad=bad), settings=settings, on_bad_sample="skip")
    batches = list(train.epoch(0))
    assert [b.num_samples for b in batches] == [4, 4, 0, 5, 3]
    assert batches[2].batch is None and batches[2].slots == ()
    assert batches[0].slots == (0, 2, 3, 4) and indices(batches[0]) == [order[0], *order[2:5]]
    assert [(b.index, b.where, b.reason) for b in batches[1].bad] == [
        (order[7], f"/data/{order[7]}.png", "truncated file")
    ]
    assert sum(len(b.bad) for b in train.epoch(1)) == 7, "told again with every epoch"
    assert sorted(train.bad_samples) == sorted(bad), "but listed once"
    clean = noise_by_index(loader().epoch(0))
    kept = noise_by_index(batches)
    assert len(kept) == 16 and all(clean[i] == noise for i, noise in kept.items())


@pytest.mark.parametrize("settings", WORKERS, ids=lambda s: str(s.num_workers))
def test_a_bad_sample_stops_the_run_with_its_index_and_place(settings):
    with pytest.raises(BadSample, match=r"bad sample 17 \(/data/17\.png\): truncated file\. .*--on-bad-sample") as told:
        list(loader(Faulty(bad=[17]), settings=settings).epoch(0))
    assert told.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize("policy", ["raise", "skip"])
@pytest.mark.parametrize("settings", WORKERS[:2], ids=lambda s: str(s.num_workers))
def test_any_other_error_names_the_sample_and_itself(settings, policy):
    with pytest.raises(DataError, match=r"sample 11 raised ValueError: no 11 here \(.*test_loader\.py:\d+\)") as told:
        list(loader(Faulty(broken=[11]), settings=settings, on_bad_sample=policy).epoch(0))
    assert "data[11]" in str(told.value) and "hotlap.workload.BadSample" in str(told.value)
    assert "Traceback" in told.value.__notes__[0] and "no 11 here" in told.value.__notes__[0]


def test_an_error_of_ours_keeps_its_kind_and_gets_the_index():
    data = Faulty(broken=[4], error=EnvironmentUnusable)
    with pytest.raises(EnvironmentUnusable, match=r"sample 4: no 4 here"):
        list(loader(data, settings=WORKERS[1]).epoch(0))


class Growing(Numbers):
    def __getitem__(self, index):
        return torch.zeros(index + 1)


class Unsendable(Numbers):
    def __getitem__(self, index):
        return {"index": index, "later": lambda: index}


class WithGradient(Numbers):
    def __init__(self):
        super().__init__()
        self.weight = torch.ones(2, requires_grad=True)

    def __getitem__(self, index):
        return self.weight * index


def first(samples):
    return samples[0]


@pytest.mark.parametrize("settings", WORKERS[:2], ids=lambda s: str(s.num_workers))
def test_samples_that_do_not_fit_one_another_are_named(settings):
    with pytest.raises(
        DataError, match=r"putting batch 0 \(samples 0 to 4\) together raised RuntimeError: .*fit one an"
    ):
        list(loader(Growing(), settings=settings, shuffle=False).epoch(0))


def test_what_a_worker_cannot_send_is_an_error_and_no_endless_wait():
    with pytest.raises(DataError, match=r"sending batch 0 \(samples 0 to 4\) from a worker raised .*num_workers = 0"):
        list(loader(Unsendable(), settings=WORKERS[1], shuffle=False, collate=first).epoch(0))
    assert len(list(loader(Unsendable(), shuffle=False, collate=first).epoch(0))) == 5


def test_a_sample_that_remembers_gradients_can_be_sent():
    batches = list(loader(WithGradient(), settings=WORKERS[1], shuffle=False).epoch(0))
    assert batches[0].batch[:, 0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("settings", WORKERS[:2], ids=lambda s: str(s.num_workers))
@pytest.mark.parametrize(
    "data",
    [TensorDataset(torch.arange(6)), torch.arange(6).view(6, 1), [torch.tensor([i]) for i in range(6)]],
    ids=["TensorDataset", "tensor", "list"],
)
def test_what_lies_in_memory_is_loaded_alike(data, settings):
    batches = [b.batch for b in loader(data, batch=4, settings=settings, shuffle=False).epoch(0)]
    values = [(b[0] if isinstance(b, list) else b).flatten().tolist() for b in batches]
    assert values == [[0, 1, 2, 3], [4, 5]]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize(("data", "name"), [(Stream(), "Stream"), (iter([1]), "list_iterator"), ({1, 2}, "set")])
def test_what_has_no_index_cannot_be_resumed_and_is_refused(data, name):
    with pytest.raises(DataError, match=rf"dataset {name} cannot be read by index.*resumed exactly.*map-style"):
        loader(data)


def test_an_empty_dataset_is_refused():
    with pytest.raises(DataError, match=r"dataset Numbers holds 0 samples"):
        loader(Numbers(0))


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ({"batch": 0}, "batch = 0 is too small"),
        ({"rank": 2, "world": 2}, "rank = 2 is not among world = 2 ranks"),
        ({"rank": -1}, "rank = -1 is not among"),
        ({"settings": LoaderSettings(pin_memory=True)}, "pin_memory = True with device = None"),
    ],
)
def test_wrong_arguments_are_refused(rest, words):
    with pytest.raises(ConfigError, match=words):
        loader(**rest)


def test_an_unknown_policy_gets_the_known_ones():
    with pytest.raises(UnknownName, match=r"on_bad_sample = 'skp' is not known\. Did you mean 'skip'\?"):
        loader(on_bad_sample="skp")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"num_workers": -1}, "num_workers = -1 is negative"),
        ({"num_workers": 1, "prefetch_factor": 0}, "prefetch_factor = 0 is too small"),
        ({"prefetch_factor": 2}, "prefetch_factor = 2 with num_workers = 0"),
        ({"persistent_workers": True}, "persistent_workers = True with num_workers = 0"),
    ],
)
def test_wrong_settings_are_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        LoaderSettings(**given)


@pytest.mark.parametrize("settings", [*WORKERS, LoaderSettings(num_workers=1, persistent_workers=True)])
def test_torch_takes_the_arguments_as_they_are(settings):
    theirs = torch.utils.data.DataLoader(Numbers(), **settings.dataloader_arguments())
    assert (theirs.num_workers, theirs.persistent_workers) == (settings.num_workers, settings.persistent_workers)
    assert theirs.prefetch_factor == (None if not settings.num_workers else settings.prefetch_factor or 2)


def test_a_worker_collects_no_garbage_of_its_parent():
    """A tensor of a card that waits in a cycle for the collector would end a worker that collects it."""

    class Left:
        def __init__(self):
            self.itself = self

        def __del__(self):
            if os.getpid() != parent:
                os._exit(3)

    class Collecting(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            gc.collect()
            return torch.tensor(index)

    parent = os.getpid()
    gc.disable()
    try:
        loader = TrainLoader(Collecting(), batch=2, seed=0, settings=LoaderSettings(num_workers=1, prefetch_factor=1))
        held = [Left() for _ in range(3)]
        batches = loader.epoch(0)
        del held
        assert sum(loaded.num_samples for loaded in batches) == 4
        assert gc.get_freeze_count() == 0
    finally:
        gc.enable()


class AtOnce(Dataset):
    """Samples that come by one call as well; ``draws`` lets them draw, ``bad`` is one that cannot be read."""

    def __init__(self, *, draws=False, bad=None):
        self.draws, self.bad, self.calls = draws, bad, []

    def __len__(self):
        return 12

    def __getitem__(self, index):
        self.calls.append(index)
        return self._one(index)

    def __getitems__(self, indices):
        self.calls.append(tuple(indices))
        return [self._one(index) for index in indices]

    def _one(self, index):
        if index == self.bad:
            raise BadSample(f"file {index}", "torn")
        return torch.tensor(float(index)) + (torch.rand(()) if self.draws else 0)


def one_epoch(data, **settings):
    return list(TrainLoader(data, batch=4, seed=0, **settings).epoch(0))


def test_samples_that_come_at_once_are_read_at_once():
    data = AtOnce()
    batches = one_epoch(data)
    assert [len(call) for call in data.calls] == [4, 4, 4]
    assert torch.cat([loaded.batch for loaded in batches]).tolist() == TrainLoader(data, batch=4, seed=0).order(0)
    assert batches[1].slots == (0, 1, 2, 3)


def test_samples_that_draw_are_read_one_by_one_for_their_own_numbers():
    many, single = AtOnce(draws=True), AtOnce(draws=True)
    single.__class__ = type("One", (AtOnce,), {"__getitems__": None})
    reader = TrainLoader(single, batch=4, seed=0)
    reader._reader._takes_many = False
    want = [loaded.batch for loaded in reader.epoch(0)]
    assert all(torch.equal(a.batch, b) for a, b in zip(one_epoch(many), want, strict=True))
    assert [type(call) for call in many.calls] == [tuple] + [int] * 12


def test_a_bad_one_among_them_is_told_by_its_index():
    data = AtOnce(bad=7)
    assert sum(loaded.num_samples for loaded in one_epoch(data, on_bad_sample="skip")) == 11
    with pytest.raises(BadSample, match=r"7 \(file 7\): torn"):
        one_epoch(AtOnce(bad=7))
