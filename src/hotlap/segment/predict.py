"""The objects in pictures of any sizes: tiles pooled into full batches, results worked out beside the network."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hotlap.base.errors import DataError
from hotlap.data.outline import Outline
from hotlap.kernels.instances.op import trace
from hotlap.segment.contours import outlines
from hotlap.segment.instances import SplitConfig, split
from hotlap.segment.normalise import normalise
from hotlap.segment.objects import ObjectMetrics, measure_objects
from hotlap.segment.tiles import TileConfig, predict_maps

if TYPE_CHECKING:
    from hotlap.segment.predictor import Predictor

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ManyConfig:
    """How objects are found in pictures that are in memory."""

    tiles: TileConfig = field(default_factory=TileConfig)
    """How pictures are cut and batched."""
    split: SplitConfig = field(default_factory=SplitConfig)
    """How maps become objects."""
    simplify_px: float = 0.75
    """How far left-out corners may lie from the outlines."""
    um_per_px: float | None = None
    """Micrometres per pixel; measurements are then in micrometres."""
    workers: int = 4
    """Threads that work on results while the network goes on."""


@dataclass(frozen=True)
class Segmented:
    """What was found in one picture."""

    labels: np.ndarray  # [H, W] int32
    """0 is background, every other value one object."""
    outlines: list[Outline]
    """By label; simplified. None of them where they were not asked for."""
    objects: list[ObjectMetrics]
    """Measurements, by label."""


MANY = ManyConfig()


def segment_maps(
    maps: np.ndarray,  # [M, H, W]
    names: tuple[str, ...],
    config: ManyConfig = MANY,
    *,
    outlined: bool = True,
) -> Segmented:
    """The objects that maps show, measured and, unless nobody wants that, outlined."""
    check_maps(maps)
    labels = split(maps, names, config.split)
    foreground, rings = maps[names.index("foreground")], trace(labels)
    return Segmented(
        labels,
        outlines(labels, tolerance=config.simplify_px, rings=rings) if outlined else [],
        measure_objects(labels, foreground, um_per_px=config.um_per_px, rings=rings),
    )


def check_maps(maps: np.ndarray) -> None:  # [M, H, W]
    """Refuses maps with NaN, which would be taken for pictures without objects."""
    if np.isnan(maps.min(initial=0.0)):
        raise DataError(
            f"the network's answer is NaN at {np.count_nonzero(np.isnan(maps))} of {maps.size} places",
            expected="probabilities",
            remedy="Use an arm of fp32 or bf16 where it was fp16; else the weights are damaged",
        )


def predict_many(
    images: Iterable[np.ndarray],  # [H, W, C] each, C is 1 or 3
    predictor: Predictor,
    config: ManyConfig = MANY,
) -> list[Segmented]:
    """The objects of each picture, in the pictures' order; tiles of all of them share full batches.

    Pictures hold samples of any kind, as ``read_pictures`` gives them; each is normalised by its own percentiles.
    """
    with ThreadPoolExecutor(config.workers, thread_name_prefix="hotlap-segment") as pool:
        pictures = (normalise(image) for image in images)
        jobs = (
            (index, pool.submit(segment_maps, maps, predictor.names, config))
            for index, maps in predict_maps(pictures, predictor, config.tiles)
        )
        found = {index: future.result() for index, future in list(jobs)}
    return [found[index] for index in sorted(found)]


MOST_BYTES = 1 << 31
"""Of maps and pictures whose results are being worked out, or wait for it."""


class Beside:
    """Work in threads beside the caller, which waits where ``most`` are under way, or fewer that are large.

    The first error is the caller's.
    """

    def __init__(self, workers: int, most: int, most_bytes: int = MOST_BYTES) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="hotlap-results")
        self._most, self._most_bytes = most, most_bytes
        self._running: deque[tuple[Future[Any], int]] = deque()

    def submit(self, size: int, work: Callable[..., Any], *arguments: Any) -> None:
        """Starts work on so many bytes; waits for the oldest where too much is under way."""
        while self._running and not self._has_room(size):
            self._running.popleft()[0].result()
        self._running.append((self._pool.submit(work, *arguments), size))

    def _has_room(self, size: int) -> bool:
        held = sum(size for _, size in self._running)
        return len(self._running) < self._most and held + size <= self._most_bytes

    def finish(self) -> None:
        """Waits for all of it."""
        try:
            while self._running:
                self._running.popleft()[0].result()
        finally:
            self._pool.shutdown(wait=True, cancel_futures=True)


def timed(items: Iterator[T], spent: Callable[[float], None]) -> Iterator[T]:
    """The same items; ``spent`` hears how many seconds each was waited for."""
    from time import perf_counter

    while True:
        began = perf_counter()
        try:
            item = next(items)
        except StopIteration:
            return
        finally:
            spent(perf_counter() - began)
        yield item
