"""Reads the samples of one batch, the same in any process: seeded one by one, bad ones told apart, failures named."""

from __future__ import annotations

import contextlib
import pickle
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.data import Dataset, get_worker_info

from hotlap.base.errors import DataError, HotlapError
from hotlap.base.raised import their_line
from hotlap.device.host_random import HostRandom, derived_seed, kept_host_random, seed_host
from hotlap.engine.loader_death import explain_death
from hotlap.engine.packed import Packed, pack
from hotlap.measure.process import freeze_error, revive_error
from hotlap.workload import BadSample, Batch

_ONE_BY_HAND = "Load it by hand to see why: data[{}]; only one that raises hotlap.workload.BadSample can be skipped"


class Ticket(NamedTuple):
    """What to read: the share of an epoch's global batch ``position`` that begins with its sample ``offset``."""

    epoch: int
    position: int
    offset: int
    indices: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A sample that its dataset called bad."""

    index: int
    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.index} ({self.where}): {self.reason}"

    def error(self) -> BadSample:
        return BadSample(f"{self.index} ({self.where})", self.reason)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What goes with a batch; no sequence and no tensor, so that the thread that pins memory hands it on as it is."""

    ticket: Ticket
    slots: tuple[int, ...] = ()
    """Where in the global batch each sample of this one stands."""
    bad: tuple[Skipped, ...] = ()
    failure: dict[str, str] | None = None
    """An error frozen for its way to the trainer's process, when there is no batch because of it."""
    trace: str = ""


class BatchReader(Dataset[tuple[Batch, Facts]]):
    """Batches by ticket. What it raises would lose its shape between processes, so failures are part of the answer."""

    def __init__(
        self,
        data: Any,
        *,
        seed: int,
        collate: Callable[[list[Any]], Batch],
        skip_bad: bool,
        is_pinned: bool = False,
    ) -> None:
        """``is_pinned``: batches are put into pinned memory next, which small ones are at once if in one piece."""
        self.data, self.seed, self.collate, self.skip_bad = data, seed, collate, skip_bad
        self.is_pinned = is_pinned
        self._sent_one = False
        self._takes_many = hasattr(data, "__getitems__")

    def __getitem__(self, ticket: Ticket) -> tuple[Batch | Packed, Facts]:
        if get_worker_info() is not None:
            with torch.no_grad():
                return self._shared(*self._read(ticket))
        with _as_in_a_worker(), torch.no_grad():
            batch, facts = self._read(ticket)
            return (pack(batch) if self.is_pinned else None) or batch, facts

    def _read(self, ticket: Ticket) -> tuple[Batch, Facts]:
        at_once = self._at_once(ticket) if self._takes_many and ticket.indices else None
        if at_once is not None:
            slots_of_all = range(ticket.offset, ticket.offset + len(at_once))
            return self._collated(at_once, Facts(ticket=ticket, slots=tuple(slots_of_all)))
        samples: list[Any] = []
        slots: list[int] = []
        bad: list[Skipped] = []
        for slot, index in enumerate(ticket.indices, start=ticket.offset):
            seed_host(derived_seed("sample", self.seed, ticket.epoch, index))
            try:
                samples.append(self.data[index])
                slots.append(slot)
            except BadSample as error:
                bad.append(Skipped(index=index, where=error.where, reason=error.reason))
                if not self.skip_bad:
                    break
            except Exception as error:  # noqa: BLE001 - whatever a dataset raises is told with the sample's index
                return None, _failed(ticket, f"sample {index}", error, _ONE_BY_HAND.format(index))
        facts = Facts(ticket=ticket, slots=tuple(slots), bad=tuple(bad))
        return self._collated(samples, facts) if samples else (None, facts)

    def _at_once(self, ticket: Ticket) -> list[Any] | None:
        """All samples by one call, where the dataset has one (``__getitems__``, which torch's own loader uses too).

        None when they must be read one by one after all: one of them is bad or fails, which is then told by its index,
        or they draw random numbers, which must depend on each sample alone.
        """
        seed_host(derived_seed("samples", self.seed, ticket.epoch))
        before = HostRandom()
        try:
            samples = list(self.data.__getitems__(list(ticket.indices)))
        except Exception:  # noqa: BLE001 - read one by one, the sample at fault says what is wrong
            return None
        self._takes_many = len(samples) == len(ticket.indices) and before.is_now()
        return samples if self._takes_many else None

    def _collated(self, samples: list[Any], facts: Facts) -> tuple[Batch, Facts]:
        ticket = facts.ticket
        try:
            return self.collate(samples), facts
        except Exception as error:  # noqa: BLE001 - as above, for the batch
            hint = "Samples must fit one another, or collate must make them fit"
            return None, _failed(ticket, f"putting {_names(ticket)} together", explain_death(error) or error, hint)

    def _shared(self, batch: Batch, facts: Facts) -> tuple[Batch | Packed, Facts]:
        """The batch in shared memory, a small one in one piece. A queue that fails to send only prints why, and the
        trainer would wait forever: whatever can fail on the way is tried here first."""
        try:
            packed = pack(batch, shared=True)
            batch = tree_map_only(Tensor, _share, batch) if packed is None else packed
            if not self._sent_one:
                pickle.dumps(tree_map_only(Tensor, lambda tensor: None, batch))
                self._sent_one = True
        except Exception as error:  # noqa: BLE001 - as above, for the way to the trainer
            hint = "A batch must be of tensors and of what pickle takes; num_workers = 0 sends nothing"
            doing = f"sending {_names(facts.ticket)} from a worker"
            return None, _failed(facts.ticket, doing, explain_death(error) or error, hint)
        return batch, facts


def _share(tensor: Tensor) -> Tensor:
    plain = tensor.device.type == "cpu" and tensor.layout is torch.strided
    return tensor.detach().share_memory_() if plain else tensor


def _names(ticket: Ticket) -> str:
    first, *rest = ticket.indices
    return f"batch {ticket.position} (samples {first}" + (f" to {rest[-1]})" if rest else ")")


def _failed(ticket: Ticket, doing: str, error: Exception, remedy: str) -> Facts:
    if isinstance(error, HotlapError):
        frozen = {**freeze_error(error), "what": f"{doing}: {error.what}"}
    else:
        said = f"{doing} raised {type(error).__name__}: {error} {their_line(error)}"
        frozen = freeze_error(DataError(said, remedy=remedy))
    return Facts(ticket=ticket, failure=frozen, trace="".join(traceback.format_exception(error)))


def raise_failure(facts: Facts, *, skip_bad: bool) -> None:
    """Raises, in the trainer's process, what kept a batch from being read; nothing if it was read."""
    if facts.failure is not None:
        error = revive_error(facts.failure)
        error.add_note(facts.trace)
        raise error
    if facts.bad and not skip_bad:
        raise facts.bad[0].error()


@contextlib.contextmanager
def _as_in_a_worker() -> Iterator[None]:
    """One thread, as torch gives a worker: sums over several threads round differently. Random states are kept."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with kept_host_random():
            yield
    finally:
        torch.set_num_threads(threads)
