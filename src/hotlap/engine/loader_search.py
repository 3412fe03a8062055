"""Which loader settings are measured, and in which order: where the data are expected to keep up, and around there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hotlap.base.errors import HotlapError
from hotlap.base.stats import interval
from hotlap.engine.loader_choice import HEADROOM, WORKER_BYTES, Limits, Row, Speed, keeps_up, refusal
from hotlap.engine.loader_settings import LoaderSettings

NEAR = 0.8
"""Workers that reach this share of what is asked for are tried with more batches ahead, too."""
STALL = 1.05
"""Half as many workers again that are no faster than by this end the climb."""

Measure = Callable[[LoaderSettings], Speed]


def search(
    tries: Sequence[LoaderSettings],
    measure: Measure,
    limits: Limits,
    *,
    consumption: float,
    headroom: float = HEADROOM,
    full: bool = False,
) -> Iterator[Row]:
    """Measures settings until the fewest workers that keep up are known; all of ``tries`` with ``full``.

    Loading without workers comes first even where it is not asked for: it tells how large a batch is, before anything
    is sent through shared memory, and how many workers will be needed.
    """
    under_way = _Search(tries, measure, limits, consumption, headroom)
    if full:
        yield from map(under_way.row, tries)
    else:
        yield from under_way.run()


class _Search:
    """One search under way; places are those in ``counts``."""

    def __init__(
        self, tries: Sequence[LoaderSettings], measure: Measure, limits: Limits, consumption: float, headroom: float
    ) -> None:
        self.measure, self.limits, self.consumption, self.headroom = measure, limits, consumption, headroom
        self.forms: dict[int, list[LoaderSettings]] = {}
        for settings in tries:
            self.forms.setdefault(settings.num_workers, []).append(settings)
        self.counts = sorted(self.forms)
        self.batch_bytes, self.worker_bytes = 0, WORKER_BYTES
        self.found: dict[LoaderSettings, Row] = {}

    def row(self, settings: LoaderSettings) -> Row:
        """One setting measured, or refused."""
        why = refusal(settings, self.limits, batch_bytes=self.batch_bytes, worker_bytes=self.worker_bytes)
        row = Row(settings=settings, refused=why) if why else self._measured(settings)
        if row.speed is not None:
            self.batch_bytes, self.worker_bytes = row.speed.batch_bytes, row.speed.worker_bytes or self.worker_bytes
        self.found[settings] = row
        return row

    def _measured(self, settings: LoaderSettings) -> Row:
        try:
            speed = self.measure(settings)
        except HotlapError as error:
            if not self.found:
                raise  # the dataset itself is at fault, or the batch, and no other setting would change that
            return Row(settings=settings, refused=f"failed: {error.what}")
        centre = interval([speed.rates])
        return Row(settings=settings, speed=speed, rate=centre.value, low=centre.low, high=centre.high)

    def run(self) -> Iterator[Row]:
        alone = self.row(self.forms[self.counts[0]][0])
        yield alone
        if self._enough(alone):
            return
        yield from self._bracket(alone)
        good = [place for place in range(1, len(self.counts)) if self._enough(self._at(place))]
        if good:
            yield from self._more_ahead(good[0] - 1, at_least=NEAR)
        else:
            yield from self._walk_down()
            yield from self._more_ahead(self._fastest(), at_least=0.0)

    def _bracket(self, alone: Row) -> Iterator[Row]:
        """Narrows down to the fewest workers that keep up, beginning where the rate so far says they should be."""
        short, enough, place = 0, len(self.counts), self._expected(alone)
        while short + 1 < enough:
            place = min(max(place, short + 1), enough - 1)
            row = self.row(self.forms[self.counts[place]][0])
            yield row
            if row.rate is None and not row.refused.startswith("failed"):
                enough, place = place, place - 1  # what cannot be borne here cannot be borne with more workers either
                continue
            if self._enough(row):
                enough = place
            elif self._stalls(short, place):
                return
            else:
                short = place
            place = self._expected(row) if row.rate else place + 1

    def _stalls(self, fewer: int, more: int) -> bool:
        """Whether many more workers gave next to nothing, so that still more will not either."""
        before, now = self._rate(fewer), self._rate(more)
        return fewer > 0 and now > 0 and self.counts[more] >= 1.5 * self.counts[fewer] and now < STALL * before

    def _expected(self, row: Row) -> int:
        """Where the workers should be enough if each loads as fast as one does in ``row``."""
        each = (row.rate or 0.0) / max(1, row.settings.num_workers)
        needed = self.headroom * self.consumption
        return next((p for p, n in enumerate(self.counts) if n * each >= needed), len(self.counts) - 1)

    def _walk_down(self) -> Iterator[Row]:
        """Fewer workers than the fastest, as long as they are no slower: none keeps up."""
        while (place := self._fastest() - 1) >= 1 and self._at(place) is None:
            yield self.row(self.forms[self.counts[place]][0])

    def _more_ahead(self, place: int, at_least: float) -> Iterator[Row]:
        """The same workers with more batches ahead, where they come near what is asked for."""
        if place < 1 or self._rate(place) < at_least * self.headroom * self.consumption or not self._rate(place):
            return
        for settings in self.forms[self.counts[place]][1:]:
            row = self.row(settings)
            yield row
            if self._enough(row):
                return

    def _fastest(self) -> int:
        """Where the rate is highest, or as high with fewer workers."""
        return max(range(1, len(self.counts)), key=self._rate, default=0)

    def _at(self, place: int) -> Row | None:
        return self.found.get(self.forms[self.counts[place]][0])

    def _rate(self, place: int) -> float:
        row = self._at(place)
        return (row.rate or 0.0) if row else 0.0

    def _enough(self, row: Row | None) -> bool:
        if row is None or row.rate is None:
            return False
        return keeps_up(row.settings, row.rate, self.consumption, self.headroom)
