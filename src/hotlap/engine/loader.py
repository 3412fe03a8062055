"""Batches for training in an order that the seed and the epoch alone decide, from any position on."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from hotlap.base.errors import ConfigError, DataError, UnknownName, did_you_mean
from hotlap.device.host import oom_kill_count
from hotlap.device.host_random import derived_seed
from hotlap.device.seed import generator
from hotlap.engine.loader_death import HAND_OVER_ERRORS, explain_death
from hotlap.engine.loader_settings import LoaderSettings as LoaderSettings
from hotlap.engine.packed import Packed
from hotlap.engine.samples import BatchReader, Facts, Skipped, Ticket, raise_failure
from hotlap.workload import Batch

BAD_SAMPLE_POLICIES = ("raise", "skip")


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """One rank's share of one global batch."""

    batch: Batch | None
    """None when the share holds no sample: more ranks than samples, or all of them bad."""
    num_samples: int
    position: int
    """Which global batch of the epoch this is."""
    offset: int
    """Where in the global batch this rank's share begins."""
    slots: tuple[int, ...]
    """Where in the global batch each sample stands; no more than offset, offset + 1, ... unless some were bad."""
    bad: tuple[Skipped, ...] = ()
    """Samples of this share that were left out."""
    packed: Packed | None = None
    """The batch once more, where its tensors lie in one piece: that can be copied at once."""


class TrainLoader:
    """Epochs of global batches over a map-style dataset, or one rank's share of each.

    The order follows from the seed and the epoch, and so does every random number that a sample draws on the host
    while it is loaded, together with the sample's index. Workers, ranks and resuming change neither.
    """

    def __init__(
        self,
        data: Any,
        *,
        batch: int,
        seed: int,
        settings: LoaderSettings | None = None,
        collate: Callable[[list[Any]], Batch] = default_collate,
        rank: int = 0,
        world: int = 1,
        on_bad_sample: str = "raise",
        shuffle: bool = True,
        device: torch.device | None = None,
        read_on: bool = False,
    ) -> None:
        """``read_on`` lets workers that live on begin the next epoch while the last batches of this one are used."""
        self.settings = settings or LoaderSettings()
        self.num_samples = dataset_size(data)
        _check(batch, rank, world, on_bad_sample, self.settings, device)
        self.batch, self.seed, self.rank, self.world, self.shuffle = batch, seed, rank, world, shuffle
        self.bad_samples: dict[int, Skipped] = {}
        """Every sample left out so far, once, by its index."""
        self._skip_bad = on_bad_sample == "skip"
        self._reader = BatchReader(
            data, seed=seed, collate=collate, skip_bad=self._skip_bad, is_pinned=self.settings.pin_memory
        )
        self._read_on = read_on
        self._tickets = _Tickets()
        self._loader: DataLoader | None = None
        self._under_way: tuple[Iterator[Any], tuple[int, int]] | None = None
        """What workers are reading for, and the epoch and position that it gives next."""

    @property
    def num_batches(self) -> int:
        """Global batches in an epoch; the last may be smaller."""
        return -(-self.num_samples // self.batch)

    def order(self, epoch: int) -> list[int]:
        """The samples of an epoch, in the order in which they are trained on."""
        if not self.shuffle:
            return list(range(self.num_samples))
        order: list[int] = torch.randperm(
            self.num_samples, generator=generator(derived_seed("order", self.seed, epoch))
        ).tolist()
        return order

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Loaded]:
        """This rank's share of every global batch from ``start`` on; those before are not loaded.

        One epoch at a time: with persistent workers, starting another one ends the one before, unless they read on and
        it begins where that one stopped.
        """
        if not 0 <= start <= self.num_batches:
            raise ConfigError(f"start = {start} is not in the epoch", expected=f"0 to {self.num_batches}")
        return self._epoch(epoch, start)

    def go_on_with(self, settings: LoaderSettings) -> None:
        """Other workers from the next call of ``epoch`` on; the batches stay the same."""
        self.close()
        self.settings = settings

    def close(self) -> None:
        """Ends persistent workers now; otherwise they end with the process."""
        if self._loader is not None:
            _end(getattr(self._loader, "_iterator", None))
        self._loader = self._under_way = None

    def _epoch(self, epoch: int, start: int) -> Iterator[Loaded]:
        if start == self.num_batches:
            return
        kills_before = oom_kill_count()
        iterator: Iterator[Any] | None = getattr(self._loader, "_iterator", None)
        try:
            iterator = self._iterator(epoch, start)  # workers that live on answer here already
            for position in range(start, self.num_batches):
                read = next(iterator, None)
                assert read is not None and read[1].ticket[:2] == (epoch, position), (
                    "another epoch was begun before this one ended"
                )
                if self._reads_on:
                    after = (epoch, position + 1) if position + 1 < self.num_batches else (epoch + 1, 0)
                    self._under_way = iterator, after
                yield self._loaded(*read)
        except HAND_OVER_ERRORS as error:
            died = explain_death(error, workers=getattr(iterator, "_workers", ()), kills_before=kills_before)
            self.close()
            if died is None:
                raise
            raise died from error
        finally:
            if not self.settings.persistent_workers:
                _end(iterator)

    @property
    def _reads_on(self) -> bool:
        return self._read_on and self.settings.persistent_workers

    def _iterator(self, epoch: int, start: int) -> Iterator[Any]:
        """What gives the batches from there on: the one under way, if it stands there, or another."""
        if self._under_way is not None and self._under_way[1] == (epoch, start):
            return self._under_way[0]
        self._under_way = None
        self._tickets.source = partial(self._cut_on if self._reads_on else self._cut, epoch, start)
        return self._started()

    def _started(self) -> Iterator[Any]:
        """The DataLoader's iterator; workers that live on from epoch to epoch are forked for the first one only.

        Whatever waits for the garbage collector here must not be collected there: a worker that gives back a tensor of
        the card, with a context that did not survive the fork, aborts.
        """
        if not self.settings.num_workers or getattr(self._loader, "_iterator", None) is not None:
            return iter(self._open())
        gc.collect()  # a tenth of a second and more: seen in short epochs, so never where nothing is forked
        gc.freeze()
        try:
            return iter(self._open())
        finally:
            gc.unfreeze()

    def _open(self) -> DataLoader:
        if self._loader is None:
            loader: DataLoader = DataLoader(
                self._reader,
                batch_size=None,
                sampler=self._tickets,  # type: ignore[arg-type]
                collate_fn=_as_it_is,
                # Without a generator of its own, torch draws from the global one at the start of every epoch.
                generator=generator(self.seed),
                **self.settings.dataloader_arguments(),
            )
            if not self.settings.persistent_workers:
                return loader
            self._loader = loader
        return self._loader

    def _cut(self, epoch: int, start: int) -> Iterator[Ticket]:
        order = self.order(epoch)
        for position in range(start, self.num_batches):
            share = order[position * self.batch : (position + 1) * self.batch]
            first, end = (len(share) * r // self.world for r in (self.rank, self.rank + 1))
            yield Ticket(epoch, position, first, tuple(share[first:end]))

    def _cut_on(self, epoch: int, start: int) -> Iterator[Ticket]:
        yield from self._cut(epoch, start)
        for later in itertools.count(epoch + 1):
            yield from self._cut(later, 0)

    def _loaded(self, batch: Batch | Packed, facts: Facts) -> Loaded:
        raise_failure(facts, skip_bad=self._skip_bad)
        if facts.bad:
            self.bad_samples.update({bad.index: bad for bad in facts.bad if bad.index not in self.bad_samples})
        packed = batch if isinstance(batch, Packed) else None
        return Loaded(
            batch=batch if packed is None else packed.unpacked(),
            packed=packed,
            num_samples=len(facts.slots),
            position=facts.ticket.position,
            offset=facts.ticket.offset,
            slots=facts.slots,
            bad=facts.bad,
        )


class _Tickets:
    """What torch's DataLoader iterates over; others from time to time, since persistent workers keep the loader."""

    def __init__(self) -> None:
        self.source: Callable[[], Iterator[Ticket]] = lambda: iter(())

    def __iter__(self) -> Iterator[Ticket]:
        return self.source()


def _end(iterator: Any) -> None:
    """Ends the workers of a DataLoader's iterator at once.

    Left to the garbage collector, an iterator that an exception still holds is inherited by the next workers, where
    collecting it disturbs both.
    """
    if hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()


def _as_it_is(read: Any) -> Any:
    return read


def dataset_size(data: Any) -> int:
    """How many samples a dataset has; refuses what cannot be read by index."""
    name = type(data).__name__
    if isinstance(data, IterableDataset) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise DataError(
            f"dataset {name} cannot be read by index, so no run could be resumed exactly where it stopped",
            expected="a map-style dataset with __len__ and __getitem__",
            remedy="Give it an index, or write its samples to files that have one",
        )
    size = len(data)
    if size < 1:
        raise DataError(f"dataset {name} holds {size} samples", expected="at least 1")
    return size


def _check(
    batch: int, rank: int, world: int, on_bad_sample: str, settings: LoaderSettings, device: torch.device | None
) -> None:
    if batch < 1:
        raise ConfigError(f"batch = {batch} is too small", expected="at least 1")
    if not 0 <= rank < world:
        raise ConfigError(f"rank = {rank} is not among world = {world} ranks", expected="0 <= rank < world")
    if on_bad_sample not in BAD_SAMPLE_POLICIES:
        raise UnknownName(
            f"on_bad_sample = {on_bad_sample!r} is not known", remedy=did_you_mean(on_bad_sample, BAD_SAMPLE_POLICIES)
        )
    if settings.pin_memory and (device is None or device.type != "cuda"):
        raise ConfigError(
            f"pin_memory = True with device = {device}",
            expected="a CUDA device, which alone copies from pinned memory",
            remedy="Leave pin_memory out",
        )
