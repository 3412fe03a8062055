"""Which loader settings to take: the smallest that keep up with the model, among those this machine can bear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hotlap.base.format import format_bytes, format_count, format_number, format_ratio
from hotlap.device.host import memory_available, read_host, shm_free_bytes
from hotlap.engine.loader_settings import LoaderSettings

HEADROOM = 1.2
"""Workers must deliver this many times what the model consumes, so that an uneven stretch does not starve it."""
IN_PROCESS_SHARE = 0.1
"""Without workers the trainer's own process loads, and a step waits for it: at most this share of a step's time."""
SHM_SHARE = 0.5
"""Of what is free in /dev/shm, batches on their way may take this much; other processes use it too."""
MEMORY_SHARE = 0.8
"""Of the memory that is left, workers and batches on their way may take this much."""
WORKER_BYTES = 200 * 2**20
"""What one worker is taken to need of its own until one has been measured."""
START_SHARE = 0.01
"""Starting the workers may take this share of an epoch; above it they are kept from one epoch to the next."""
PREFETCHES = (2, 4)
APART = (
    "Measured without the model: workers and the training share the cores, so a training may get less; 'hotlap train' "
    "shows its real rate."
)
"""Said wherever workers were chosen, for a rate measured alone is only an upper bound of what a training gets."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a loader may use here."""

    cpus: int
    """Processes that can run at once, by affinity and quota."""
    shm_bytes: int | None = None
    """Free in /dev/shm; None where there is none."""
    memory_bytes: int | None = None
    """Left on the host or in the cgroup, whichever is less; None when not known."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """What loading with one setting gave."""

    rates: list[float]
    """Samples a second in each window, in order."""
    start_s: float
    """From asking for the first batch to having it; starting the workers is part of it."""
    batch_bytes: int
    worker_bytes: int | None = None
    """Memory of its own that the largest worker held; None without workers."""
    num_samples: int = 0
    """In the dataset."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One setting: measured, or refused with the reason."""

    settings: LoaderSettings
    speed: Speed | None = None
    rate: float | None = None
    """Samples a second: the median of the windows, with its 95% interval."""
    low: float | None = None
    high: float | None = None
    refused: str = ""
    """Why it was not measured, or why measuring failed."""
    chosen: bool = False


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The settings to take and why."""

    settings: LoaderSettings
    rows: list[Row]
    consumption: float
    """Samples a second that the model takes when it never waits."""
    enough: bool
    """Whether the chosen one keeps up."""
    headline: str
    lines: list[str] = field(default_factory=list)

    @property
    def chosen(self) -> Row:
        return next(row for row in self.rows if row.chosen)


def read_limits() -> Limits:
    """What this process may use of this machine now."""
    return Limits(cpus=read_host().usable_cpus, shm_bytes=shm_free_bytes(), memory_bytes=memory_available())


def worker_counts(cpus: int) -> list[int]:
    """0, 1, 2, 3, 4, 6, 8, 12, 16, ... up to the CPUs that can be used."""
    counts = [0, 1, 2, 3]
    while counts[-1] < cpus:
        counts += [4 * 2 ** ((len(counts) - 4) // 2), 6 * 2 ** ((len(counts) - 4) // 2)]
    return [count for count in counts if count <= cpus]


def candidates(
    workers: Sequence[int], *, prefetches: Sequence[int] = PREFETCHES, pin_memory: bool = False
) -> list[LoaderSettings]:
    """The settings to try, cheapest first: fewer workers, then fewer batches ahead."""
    ahead = sorted(set(prefetches))
    pairs = [(count, factor) for count in sorted(set(workers)) for factor in (ahead if count else [None])]
    return [LoaderSettings(num_workers=n, prefetch_factor=factor, pin_memory=pin_memory) for n, factor in pairs]


def refusal(settings: LoaderSettings, limits: Limits, *, batch_bytes: int, worker_bytes: int) -> str:
    """Why this machine cannot bear ``settings``; '' if it can."""
    if settings.num_workers == 0:
        return ""
    ahead = settings.in_flight * batch_bytes
    batches = f"{format_count(settings.in_flight, 'batch', 'batches')} of {format_bytes(batch_bytes)} on their way"
    if limits.shm_bytes is not None and ahead > SHM_SHARE * limits.shm_bytes:
        return f"{batches} are more than half of the {format_bytes(limits.shm_bytes)} free in /dev/shm"
    if limits.memory_bytes is not None and ahead + settings.num_workers * worker_bytes > MEMORY_SHARE * (
        limits.memory_bytes
    ):
        workers = f"{format_count(settings.num_workers, 'worker')} of {format_bytes(worker_bytes)}"
        return f"{workers} and {batches} are too much for the {format_bytes(limits.memory_bytes)} of memory left"
    return ""


def keeps_up(settings: LoaderSettings, rate: float, consumption: float, headroom: float = HEADROOM) -> bool:
    """Whether the model hardly ever waits: workers load beside it, the trainer's own process instead of it."""
    return rate >= rate_that_decides(settings, consumption, headroom)


def rate_that_decides(settings: LoaderSettings, consumption: float, headroom: float = HEADROOM) -> float:
    """Samples a second from which on ``settings`` keep up."""
    return consumption * (headroom if settings.num_workers else max(headroom, 1 / IN_PROCESS_SHARE))


def training_rate(settings: LoaderSettings, rate: float, consumption: float) -> float:
    """Samples a second that training reaches at most: the slower of two at once, or one after the other."""
    return min(rate, consumption) if settings.num_workers else 1 / (1 / rate + 1 / consumption)


def choose(rows: Sequence[Row], consumption: float, headroom: float = HEADROOM) -> Choice:
    """The cheapest row that keeps up, or the one with which training goes fastest."""
    measured = [(row, row.rate) for row in sorted(rows, key=_cost) if row.rate is not None]
    assert measured, "search raises when not even the first setting can be measured"
    good = [row for row, rate in measured if keeps_up(row.settings, rate, consumption, headroom)]
    best, _ = max(measured, key=lambda pair: training_rate(pair[0].settings, pair[1], consumption))
    won = good[0] if good else best
    assert won.rate is not None and won.speed is not None
    settings = replace(won.settings, persistent_workers=_worth_keeping(won, consumption))
    marked = [replace(row, settings=settings, chosen=True) if row is won else row for row in rows]
    times = format_ratio(won.rate / consumption)
    headline = f"{describe(settings)}: {format_number(won.rate)} samples/s, {times} what the model consumes"
    return Choice(
        settings=settings,
        rows=marked,
        consumption=consumption,
        enough=bool(good),
        headline=headline if good else f"{headline}; {_shortfall(won, consumption)}",
        lines=_reasons(won, settings, rows, consumption, headroom) if good else _bottleneck(won, rows, consumption),
    )


def describe(settings: LoaderSettings) -> str:
    """``2 workers, prefetch 2``, as tables and headlines say it."""
    if settings.num_workers == 0:
        return "no workers"
    return f"{format_count(settings.num_workers, 'worker')}, prefetch {settings.in_flight // settings.num_workers}"


def _cost(row: Row) -> tuple[int, int]:
    return row.settings.num_workers, row.settings.in_flight


def _worth_keeping(row: Row, consumption: float) -> bool:
    assert row.rate is not None and row.speed is not None
    if row.settings.num_workers == 0:
        return False
    epoch_s = row.speed.num_samples / training_rate(row.settings, row.rate, consumption)
    return row.speed.start_s > START_SHARE * epoch_s


def _reasons(won: Row, settings: LoaderSettings, rows: Sequence[Row], consumption: float, headroom: float) -> list[str]:
    assert won.rate is not None
    if settings.num_workers == 0:
        share = consumption / won.rate
        return [f"Loading in the trainer's own process takes {share:.1%} of a step's time; workers can gain no more."]
    alone = next((row.rate for row in rows if row.settings.num_workers == 0 and row.rate), None)
    lines = [f"Without workers every step would take {consumption / alone:.0%} longer."] if alone else []
    if any(row.settings.num_workers > 0 and _cost(row) < _cost(won) for row in rows):
        lines.append(f"Fewer workers or batches ahead deliver less than {headroom:g} times the consumption.")
    if settings.persistent_workers:
        lines.append("Workers are kept between epochs, because starting them takes over 1% of an epoch.")
    return [*lines, APART]


def _shortfall(won: Row, consumption: float) -> str:
    assert won.rate is not None
    hidden = won.settings.num_workers > 0 and won.rate >= consumption
    return "any unevenness makes the loader the bottleneck" if hidden else "the loader is the bottleneck"


def _bottleneck(won: Row, rows: Sequence[Row], consumption: float) -> list[str]:
    assert won.rate is not None
    reach = training_rate(won.settings, won.rate, consumption) / consumption
    lines = [f"With it, training reaches at most about {min(reach, 1):.0%} of the speed the model could have."]
    lines += [APART] if won.settings.num_workers else []
    most = max(row.settings.num_workers for row in rows if row.rate is not None)
    if any(row.refused for row in rows):
        lines.append("Settings were refused: more /dev/shm (--shm-size) or memory would allow more workers.")
    if won.settings.num_workers == most:
        lines.append("The most workers that were tried are the fastest: more CPUs would help, or cheaper samples.")
    else:
        lines.append("More workers are no faster: busy CPUs, the disk, the memory or the copying hold them up.")
    return [
        *lines,
        "Cheaper samples: store them decoded or smaller, augment on the device, return fewer bytes.",
    ]


def consumption_of(batch: int, step_ms: float) -> float:
    """Samples a second of a model that takes ``step_ms`` for a batch."""
    return batch / step_ms * 1e3 if step_ms > 0 else math.inf
